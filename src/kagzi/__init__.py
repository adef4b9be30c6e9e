"""Kagzi: durable workflows for Python on PostgreSQL."""
