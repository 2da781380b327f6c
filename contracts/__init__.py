"""What crosses a boundary: schema, hashes, record bytes, the one feature assembler, HTTP bodies, manifest."""
