"""`BatchReader` with its options given by name."""

from dataclasses import fields

from dataloading.batches import BatchReader, Ids, Order, Share


def batch_reader(split, batch_size: int, **options) -> BatchReader:
    """Make a reader; `options` are the fields of `Share`, `Order` and `Ids`, and `short_last`."""
    short_last = options.pop("short_last", False)
    groups = [kind(**{field.name: options.pop(field.name) for field in fields(kind) if field.name in options}) for kind in (Share, Order, Ids)]
    assert not options, options
    return BatchReader(split, batch_size, *groups, short_last=short_last)
