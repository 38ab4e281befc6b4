"""`BatchReader` with its options given by name."""

from dataclasses import fields

from dataloading.batches import BatchReader, Ids, Order, Share


def batch_reader(split, batch_size: int, **options) -> BatchReader:
    """Make a reader; `options` are the fields of `Share`, `Order` and `Ids`, `short_last` and `for_training`."""
    others = {name: options.pop(name) for name in ("short_last", "for_training") if name in options}
    groups = [kind(**{field.name: options.pop(field.name) for field in fields(kind) if field.name in options}) for kind in (Share, Order, Ids)]
    assert not options, options
    return BatchReader(split, batch_size, *groups, **others)
