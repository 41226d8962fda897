"""The tables of connector keys, one module per subject. ``connector_keys`` joins them."""
