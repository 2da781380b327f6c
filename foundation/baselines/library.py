"""DIN, DIEN, BST and DCNv2: layers of torch-rechub (docs/adr/0007) behind our tokens and for all tasks at once.

Legend: B batch, T sequence tokens (the request's own impression first), L = T - 1 history events, M events of all rows
in one line, N set tokens, D token width, K tasks.
The library's model classes bring their own embedding tables and end in one probability. Here their layers read
the tokens that every model here reads: an event is the embeddings of its ad and surface with its known labels, and
the candidate is the request's own impression. Set tokens and interest then enter the library's cross network and
tower side by side (DCNv2's parallel structure), which end in a logit a task. DIEN stands without its auxiliary loss,
which torch-rechub's own model has (docs/adr/0007 says why).
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch_rechub.basic.features import SparseFeature
from torch_rechub.basic.layers import MLP, CrossNetV2
from torch_rechub.models.ranking.bst import BST
from torch_rechub.models.ranking.dien import AUGRU
from torch_rechub.models.ranking.din import ActivationUnit

from foundation.baselines.baseline import Baseline
from foundation.baselines.configs import LibraryConfig
from foundation.layout import InputLayout


class LibraryModel(Baseline):
    """The model that `config.name` names."""

    def __init__(self, layout: InputLayout, config: LibraryConfig) -> None:
        super().__init__(layout, config)
        self.interest = INTERESTS[config.name](config)
        wide = (self.set_tokens + self.interest.tokens) * config.dim
        crossed = wide if config.cross_layers else 0
        self.cross = CrossNetV2(wide, config.cross_layers) if crossed else None
        self.tower = MLP(wide, output_layer=False, dims=list(config.head_hidden), dropout=config.dropout)
        self.out = nn.Linear(config.head_hidden[-1] + crossed, len(layout.schema.tasks))

    def logits(self, s_BTD: Tensor, x_BND: Tensor, mask_BT: Tensor) -> Tensor:
        """Logits [B, K]."""
        wide_BW = torch.cat([x_BND.flatten(1), self.interest(s_BTD, mask_BT)], dim=1)
        parts = [_normalised(self.tower, wide_BW)]
        if self.cross is not None:
            parts.append(self.cross(wide_BW))
        logits_BK: Tensor = self.out(torch.cat(parts, dim=1))
        return logits_BK


class Interest(nn.Module):
    """What a model makes of sequence and candidate: `tokens` tokens of width D, flat."""

    tokens = 2


class Candidate(Interest):
    """DCNv2 reads no sequence: the candidate's event token alone, whose features are set tokens too.

    It still sees the feedback rates among the floats of the request; `history_length` 0 takes these away.
    """

    tokens = 1

    def __init__(self, config: LibraryConfig) -> None:
        super().__init__()

    def forward(self, s_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """[B, D]."""
        return s_BTD[:, 0]


class DinInterest(Interest):
    """Sum of the events, each weighed by the activation unit (1706.06978, section 4.3: no softmax).

    The unit normalises over all events that it is given, so it is given the events in one line, without padding.
    """

    def __init__(self, config: LibraryConfig) -> None:
        super().__init__()
        self.unit = ActivationUnit(config.dim, dims=[config.attention_hidden])

    def forward(self, s_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """[B, 2 D]: interest and candidate."""
        target_BD, history_BLD, mask_BL = s_BTD[:, 0], s_BTD[:, 1:], mask_BT[:, 1:]
        row_M = mask_BL.nonzero()[:, 0]
        interest_BD = torch.zeros_like(target_BD)
        if len(row_M):
            weighed_MD = _normalised(self.unit, history_BLD[mask_BL][:, None], target_BD[row_M])
            interest_BD = interest_BD.index_add(0, row_M, weighed_MD)
        return torch.cat([interest_BD, target_BD], dim=1)


class DienInterest(Interest):
    """A GRU over the events, oldest first, then the library's AUGRU steered by the candidate (1809.03672).

    Without the paper's auxiliary loss, see above.
    """

    def __init__(self, config: LibraryConfig) -> None:
        super().__init__()
        self.extract = nn.GRU(config.dim, config.dim, batch_first=True)
        self.evolve = AUGRU(config.dim)

    def forward(self, s_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """[B, 2 D]: interest and candidate."""
        target_BD = s_BTD[:, 0]
        interest_BD = torch.zeros_like(target_BD)
        length_B = mask_BT[:, 1:].sum(dim=1)
        some_R = (length_B > 0).nonzero()[:, 0]
        if len(some_R):
            history_RLD = oldest_first(s_BTD[some_R, 1:], length_B[some_R])
            packed = pack_padded_sequence(history_RLD, length_B[some_R].cpu(), batch_first=True, enforce_sorted=False)
            states_RLD, _ = pad_packed_sequence(self.extract(packed)[0], batch_first=True)
            mask_RL = torch.arange(states_RLD.shape[1], device=length_B.device) < length_B[some_R, None]
            interest_BD = interest_BD.index_copy(0, some_R, self.evolve(states_RLD, target_BD[some_R], mask_RL)[1])
        return torch.cat([interest_BD, target_BD], dim=1)


def _normalised(layer: nn.Module, *inputs: Tensor) -> Tensor:
    """The layer's answer. Batch norm refuses to train on one row, so that row takes the running statistics."""
    alone = layer.training and len(inputs[0]) == 1
    answer: Tensor = layer.train(not alone and layer.training)(*inputs)
    layer.train(alone or layer.training)
    return answer


def oldest_first(history_RLD: Tensor, length_R: Tensor) -> Tensor:
    """Turns each row's first `length` events round; padding stays last."""
    rank_L = torch.arange(history_RLD.shape[1], device=length_R.device)
    back_RL = (length_R[:, None] - 1 - rank_L).clamp(min=0)
    return history_RLD.take_along_dim(back_RL[..., None], dim=1)


class BstInterest(Interest):
    """BST's encoder over candidate and events; the candidate's output is the interest (1905.06874).

    Positions count from the candidate, so that they do not depend on how far a batch is padded. torch's default width
    of the feed-forward layer, which the library leaves at 2,048, becomes `config.feed_forward`.
    """

    def __init__(self, config: LibraryConfig) -> None:
        super().__init__()
        event = SparseFeature("event", vocab_size=1, embed_dim=config.dim)
        with warnings.catch_warnings():  # torch explains why it takes no nested tensors, which nobody asked for
            warnings.simplefilter("ignore")
            library = BST(
                [],
                [event],
                [event],
                {"dims": [1]},
                nhead=config.heads,
                dropout=config.dropout,
                num_layers=config.blocks,
                max_seq_len=config.history_length + 1,
            )
        self.positions, self.encoder = library.pos_embedding, library.transformer_layers
        for block in self.encoder.layers:
            block.linear1 = nn.Linear(config.dim, config.feed_forward)
            block.linear2 = nn.Linear(config.feed_forward, config.dim)

    def forward(self, s_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """[B, 2 D]: interest and candidate."""
        seen_BTD = s_BTD + self.positions.weight[: s_BTD.shape[1]]
        encoded_BTD = self.encoder(seen_BTD, src_key_padding_mask=~mask_BT)
        return torch.cat([encoded_BTD[:, 0], s_BTD[:, 0]], dim=1)


INTERESTS: dict[str, Callable[[LibraryConfig], Interest]] = {
    "DIN": DinInterest,
    "DIEN": DienInterest,
    "BST": BstInterest,
    "DCNv2": Candidate,
}
