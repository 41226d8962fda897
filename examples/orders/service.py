"""Takes orders: stores each and publishes order-created in one transaction. See README.md beside this file.

The service knows no Kafka: a relay sends what has committed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from fastapi import FastAPI
from pydantic import BaseModel, Field

from compactory_connectors.outbox import Outbox

POSTGRES = os.environ.get("ORDERS_POSTGRES", "postgresql://postgres@localhost/postgres")
TOPIC = os.environ.get("ORDERS_TOPIC", "order-created")


class Order(BaseModel):
    """An order as it comes."""

    customer: str
    total: int = Field(gt=0, description="in cents")


class OrderCreated(Order):
    """An order as others hear of it."""

    id: int


app = FastAPI(title="Orders")
outbox = Outbox()


@contextmanager
def transaction() -> Iterator[psycopg.Connection[Any]]:
    """A connection whose transaction commits at the end of the block, or rolls back with the exception that ends it."""
    with psycopg.connect(POSTGRES) as connection:
        yield connection


@app.post("/orders", status_code=201)
def create(order: Order) -> OrderCreated:
    """Store an order; whoever reads the topic hears of it if, and only if, it was stored."""
    with transaction() as connection:
        row = connection.execute(
            "INSERT INTO orders (customer, total) VALUES (%s, %s) RETURNING id", [order.customer, order.total]
        ).fetchone()
        assert row is not None
        created = OrderCreated(id=row[0], **order.model_dump())
        outbox.publish(connection, TOPIC, created.model_dump_json(), key=order.customer)
        if order.customer == "nobody":  # an error after the message was published
            raise ValueError("there is no such customer")
    return created


@app.get("/orders")
def orders() -> list[OrderCreated]:
    """All that were stored."""
    with transaction() as connection:
        rows = connection.execute("SELECT id, customer, total FROM orders ORDER BY id").fetchall()
    return [OrderCreated(id=row[0], customer=row[1], total=row[2]) for row in rows]
