"""Numbers as people read them."""


def human_bytes(number: float) -> str:
    """Bytes in a unit that reads well: `1.3 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def counted(number: int, noun: str) -> str:
    """A number of things: `1 cell`, `2 cells`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def human_count(number: float, unit: str = "") -> str:
    """A count in powers of ten that reads well: `12.3 M`, `154 GFLOP`."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(number) < 1000:
            return f"{number:.3g} {prefix}{unit}".strip()
        number /= 1000
    return f"{number:.3g} E{unit}"
