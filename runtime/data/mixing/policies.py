"""Mixing policies by the `kind` that a config writes."""

from runtime.data.mixing.loss_drop import LossDrop
from runtime.data.mixing.odm import OdmPaper, OdmReleased
from runtime.data.mixing.static import Static

MixingPolicy = Static | OdmPaper | OdmReleased | LossDrop
