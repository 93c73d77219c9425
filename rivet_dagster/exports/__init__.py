"""What is exported: the export, its plan, and how rows become parts."""
