"""The demo's database: a small shop in SQLite, the same rows on every machine, made where it is first asked for."""

from __future__ import annotations

import os
import random
import sqlite3
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

__all__ = ["CUSTOMERS", "ORDERS", "ensure_shop"]

CUSTOMERS = 4_000
ORDERS = 14_000

_SEED = 20_250_101
_OPENED = datetime(2025, 1, 1)  # noqa: DTZ001 - the shop's clock is naive, as in many real databases
_SCHEMA = """
create table customers (
    id integer primary key,
    name text not null,
    email text,
    country text not null,
    newsletter boolean not null,
    signed_up_at timestamp not null
);
create table orders (
    id integer primary key,
    customer_id integer not null references customers (id),
    status text not null,
    total decimal(10,2) not null,
    gift boolean not null,
    note text,
    placed_at timestamp not null,
    shipped_at timestamp
);
create table order_items (
    id integer primary key,
    order_id integer not null references orders (id),
    product text not null,
    quantity integer not null,
    unit_price decimal(10,2) not null,
    discount decimal(10,2)
);
"""
_FIRST = ("Zoë", "Łukasz", "Ana", "Søren", "Мария", "健太", "Renée", "Jürgen", "Aylin", "Noor", "İpek", "Tomás")
_LAST = ("Müller", "O'Neil", "Nakamura", "Żak", "García", "Иванова", "de Vries", "Nguyễn", "Öztürk", "Smith")
_COUNTRIES = ("DE", "FR", "GB", "JP", "NL", "PL", "ES", "TR", "US", "VN")
_PRODUCTS = (
    ("Café crème, 500 g", 1290),
    ('Notebook "A5"', 450),
    ("Tea 茶, 100 g", 875),
    ("Mug", 1199),
    ("Lamp", 5900),
    ("Desk; oak", 24_950),
    ("Pen", 199),
)
_NOTES = (None, None, None, "leave at door", "", "Überraschung!", "two lines:\nring twice", "gift 🎁, no invoice")
_STATUSES = ("shipped", "shipped", "shipped", "paid", "cancelled")


def ensure_shop(path: Path) -> Path:
    """Make the shop unless it is there.

    It appears whole or not at all; of several processes that make it at once, any may win, with the same rows.

    Args:
        path: of the SQLite database; its directory is made too.

    Returns:
        `path`.
    """
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, staged = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        _fill(staged)
        os.replace(staged, path)
    finally:
        Path(staged).unlink(missing_ok=True)
    return path


def _fill(staged: str) -> None:
    rng = random.Random(_SEED)  # noqa: S311 - sample rows, not secrets
    shop = sqlite3.connect(staged)
    try:
        # Nothing is lost with a half-made staged database: no journal beside it, no waiting for the disk.
        shop.executescript(f"pragma journal_mode = off; pragma synchronous = off; {_SCHEMA}")
        shop.executemany("insert into customers values (?, ?, ?, ?, ?, ?)", _customers(rng))
        for order, items in _orders(rng):
            shop.execute("insert into orders values (?, ?, ?, ?, ?, ?, ?, ?)", order)
            shop.executemany("insert into order_items values (null, ?, ?, ?, ?, ?)", items)
        shop.commit()
    finally:
        shop.close()


def _customers(rng: random.Random) -> Iterator[tuple[object, ...]]:
    for number in range(1, CUSTOMERS + 1):
        name = f"{rng.choice(_FIRST)} {rng.choice(_LAST)}"
        email = None if rng.random() < 0.1 else f"customer{number}@example.com"  # noqa: PLR2004 - one in ten
        signed_up = _OPENED + timedelta(seconds=rng.randrange(180 * 86_400))
        yield number, name, email, rng.choice(_COUNTRIES), rng.random() < 0.5, _text(signed_up)  # noqa: PLR2004


def _orders(rng: random.Random) -> Iterator[tuple[tuple[object, ...], list[tuple[object, ...]]]]:
    placed = _OPENED
    for number in range(1, ORDERS + 1):
        placed += timedelta(seconds=rng.randrange(60, 4_400))
        status = rng.choice(_STATUSES)
        items: list[tuple[object, ...]] = []
        total = 0
        for product, cents in rng.sample(_PRODUCTS, rng.randrange(1, 5)):
            quantity = rng.randrange(1, 6)
            discount = rng.choice((None, None, None, 50, 100))
            total += quantity * cents - (discount or 0)
            items.append((number, product, quantity, _money(cents), None if discount is None else _money(discount)))
        shipped = _text(placed + timedelta(seconds=rng.randrange(3_600, 400_000))) if status == "shipped" else None
        customer = rng.randrange(1, CUSTOMERS + 1)
        gift, note = rng.random() < 0.2, rng.choice(_NOTES)  # noqa: PLR2004 - one in five
        yield (number, customer, status, _money(total), gift, note, _text(placed), shipped), items


def _money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d}"


def _text(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="seconds")
