"""Distinct types for the ids that travel between rooms."""

from __future__ import annotations

from typing import NewType

RequestId = NewType("RequestId", str)
PageId = NewType("PageId", int)
RowId = NewType("RowId", int)
"""A permanent place in the executor that a running request holds until it ends."""
