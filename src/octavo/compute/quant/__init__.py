"""Stored weight formats and their values in float32."""
