"""Finishes tenants: registers each with the payment provider, has a mail written. See README.md beside this file."""

from __future__ import annotations

import os
from typing import Any

import httpx2

from compactory_connectors.processors import Event, Failed, Output, Retry, processor

PROVIDER = os.environ.get("PROVIDER_URL", "http://127.0.0.1:8090")


@processor(
    "tenants-pending",
    created="tenants-created",
    failed="tenants-failed",
    retry=Retry(max_attempts=20, first=0.2, limit=5),
)
def register(event: Event) -> dict[str, Any] | None:
    """Open an account with the provider; an error of its own is tried again, a refusal is the outcome."""
    if event.value is None:  # the tenant was deleted
        return None
    answer = httpx2.post(PROVIDER, json=event.value, headers={"Idempotency-Key": event.id}, timeout=5)
    if answer.status_code == 402:
        raise Failed("the provider wants to be paid")
    return {**event.value, "account": answer.raise_for_status().json()["account"]}


@processor("tenants-created")
def welcome(event: Event) -> Output | None:
    """Have a mail written, once, to each tenant that was created."""
    if event.value is None:
        return None
    text = f"Welcome! Your account is {event.value['account']}."
    return Output(topic="welcome-mails", key=event.key, value={"to": event.value["email"], "text": text})
