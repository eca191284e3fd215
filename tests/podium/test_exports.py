"""Names that a program imports from `podium`."""

import pytest

import podium


@pytest.mark.parametrize("name", podium.EXPORTS)
def test_every_exported_name_is_defined_in_its_module(name: str) -> None:
    module = podium.EXPORTS[name].partition(":")[0]
    assert getattr(podium, name).__module__ == module


def test_the_list_of_exports_is_complete() -> None:
    assert podium.__all__ == dir(podium) == sorted(podium.EXPORTS)
    namespace: dict[str, object] = {}
    exec("from podium import *", namespace)
    assert namespace.keys() - {"__builtins__"} == set(podium.EXPORTS)


def test_an_unknown_name_raises_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'podium' has no attribute 'Absent'"):
        podium.Absent  # noqa: B018
