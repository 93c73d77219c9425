"""The file formats and their settings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from rivet_dagster.errors import ConfigError
from rivet_dagster.exports.fields import Fields

__all__ = ["Csv", "Format", "Parquet", "as_format"]


class Parquet(Fields):
    """Apache Parquet. The defaults are small and quick; every reader of format 2.6 can open the parts."""

    kind: Literal["parquet"] = Field(default="parquet", description="The format's name.")
    compression: Literal["zstd", "snappy", "gzip", "lz4", "none"] = Field(
        default="zstd", description="Codec of the pages."
    )
    level: int | None = Field(
        default=None, description="Codec level: zstd 1 to 22 (default 1), gzip 1 to 9; the other codecs have none."
    )
    row_group_bytes: int = Field(
        default=10_000_000,
        ge=1,
        le=1_000_000_000,
        description="A row group ends with the row that brings its values, before encoding, to so many bytes.",
    )
    row_group_rows: int = Field(
        default=1_048_576, ge=1, le=10_000_000, description="A row group never has more rows than this."
    )

    @property
    def suffix(self) -> str:
        """Of a part's name."""
        return ".parquet"


class Csv(Fields):
    r"""CSV after RFC 4180, UTF-8, `\r\n` between records; every part begins with the header.

    Text is always quoted, so NULL (an empty field) and the empty text (`""`) stay apart. Instants are ISO 8601 in
    UTC and end in `Z`, naive timestamps have no zone, binary is lower-case hex, decimals never have an exponent,
    floats read back as the same number (`NaN`, `inf`, `-inf`), booleans are `true` and `false`. In a part of a single
    column NULL is an empty line, which some readers skip.
    """

    kind: Literal["csv"] = Field(default="csv", description="The format's name.")
    compression: Literal["none", "gzip", "zstd"] = Field(default="none", description="Codec of the whole part.")
    level: int | None = Field(
        default=None, description="Codec level: gzip 1 to 9 (default 6); zstd is always 1 and the others have none."
    )

    @property
    def suffix(self) -> str:
        """Of a part's name."""
        return ".csv" + {"none": "", "gzip": ".gz", "zstd": ".zst"}[self.compression]


def as_format(value: Any) -> Any:
    """Turn "parquet" and "csv" into the format with its default settings; anything else is left as it is.

    Raises:
        ConfigError: a text that names no format.
    """
    if not isinstance(value, str):
        return value
    match value:
        case "parquet":
            return Parquet()
        case "csv":
            return Csv()
    msg = f'format: expected "parquet" or "csv", or one of them with settings; found {value!r}'
    raise ConfigError(msg)


_Settled = Annotated[Parquet | Csv, Field(discriminator="kind")]
Format = Annotated[_Settled, BeforeValidator(as_format, json_schema_input_type=Literal["parquet", "csv"] | _Settled)]
"""A format with its settings; its name alone will do."""
