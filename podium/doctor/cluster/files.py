"""Read settings, Serve config, cluster file, prices and model sizes into one `ClusterFiles`."""

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from cluster.local.uv import ROOT
from podium.doctor.cluster import deployments, machines
from podium.doctor.cluster.deployments import Deployment, ServeConfig
from podium.doctor.cluster.machines import Machines
from podium.doctor.cluster.reading import CheckError, FileModel
from serving.settings.overrides import settings_to_serve
from serving.settings.price_table import with_known_prices
from serving.settings.settings import Settings, SettingsError

CLUSTER = ROOT / "cluster"
PRICES, MODELS = CLUSTER / "prices.yaml", CLUSTER / "models.yaml"
T = TypeVar("T")


class InstancePrice(FileModel):
    on_demand_usd_per_h: Decimal = Field(ge=0)
    spot_usd_per_h: Decimal | None = Field(default=None, ge=0)


class CallTokens(FileModel):
    """Typical tokens of one of a request's calls. Cached ones are included in the input."""

    worker: str
    input_tokens: int = Field(ge=0)
    output_tokens: int = Field(ge=0)
    cached_input_tokens: int = Field(default=0, ge=0)


class Prices(FileModel):
    instances: dict[str, InstancePrice] = Field(default_factory=dict)
    gpu_memory_gib: dict[str, float] = Field(default_factory=dict)
    requests: dict[str, list[CallTokens]] = Field(default_factory=dict)


class ModelSize(FileModel):
    """Dimensions of a model, from which its memory is estimated."""

    parameters: int = Field(gt=0)
    layers: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    weight_bytes: int | None = None
    """Size of the weight files in bytes, or None to estimate it from `parameters`."""


@dataclass(frozen=True, slots=True)
class ClusterFiles:
    """Parsed files of a cluster. Every check takes one."""

    settings: Settings
    settings_file: str
    serve: ServeConfig
    machines: Machines
    deployments: tuple[Deployment, ...]
    prices: Prices
    prices_file: str
    models: dict[str, ModelSize]


def read_files(
    settings: Path, serve: Path, cluster: Path, prices: Path = PRICES, models: Path = MODELS
) -> ClusterFiles:
    """Read all files of a cluster. The CheckError names one that cannot be used."""
    config = deployments.read(serve)
    try:
        served = settings_to_serve(settings, config.model, config.conductor)
    except SettingsError as exc:
        raise CheckError(exc.message) from exc
    return ClusterFiles(
        settings=with_known_prices(served, {}),
        settings_file=str(settings),
        serve=config,
        machines=machines.read(cluster),
        deployments=tuple(deployments.deployments_of(served, config)),
        prices=_table(prices, TypeAdapter(Prices)),
        prices_file=str(prices),
        models=_table(models, TypeAdapter(dict[str, ModelSize])),
    )


def _table(path: Path, adapter: TypeAdapter[T]) -> T:
    try:
        return adapter.validate_python(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError) as exc:
        raise CheckError(f"{path} cannot be read: {exc}") from exc
    except ValidationError as exc:
        fault = exc.errors(include_url=False)[0]
        raise CheckError(f"{path}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from exc
