"""Every policy, by the `kind` that a config writes."""

from runtime.data.mixing.exp3 import Exp3
from runtime.data.mixing.fixed import Proportional, Static, Stratified
from runtime.data.mixing.loss_drop import LossDrop
from runtime.data.mixing.odm_paper import OdmPaper
from runtime.data.mixing.odm_released import OdmReleased

MixingPolicy = Static | Proportional | Stratified | OdmPaper | OdmReleased | Exp3 | LossDrop
