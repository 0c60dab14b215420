"""The base of every configuration object: frozen, strict, and able to say what it is."""

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Frozen and closed: an unknown key is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Part(Config):
    """One alternative of a union keyed by `kind`: a literal that every subclass declares."""

    @property
    def label(self) -> str:
        """The kind, with the fields that differ from their default: `spectrum(lam=0.5)`."""
        changed = [
            f"{name}={format_value(getattr(self, name))}"
            for name, field in type(self).model_fields.items()
            if name != "kind" and getattr(self, name) != field.get_default()
        ]
        kind = str(dict(self)["kind"])
        return f"{kind}({', '.join(changed)})" if changed else kind


def format_value(value: object) -> str:
    """A value as level labels and tables show it: `0.0005`, `none`, `[1, 2]`."""
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Part):
        return value.label
    return str(value)
