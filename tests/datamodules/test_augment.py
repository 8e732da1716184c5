"""Augmentation: equal to torchvision's operations, and each draw a function of (seed, epoch, sample)."""

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as TF

from datamodules import augment
from datamodules.augment import _COLUMN, _FLIP, _ROW, Augmentation, boxes
from datamodules.draws import uniform


def images(num, height=12, width=10):
    return np.random.default_rng(0).integers(0, 256, (num, height, width, 3), dtype=np.uint8)


def keys(indices, epoch=3, seed=7):
    return seed, epoch, np.asarray(indices)


def test_crop_and_flip_are_torchvisions():
    given, sample = images(40), keys(np.arange(40))
    made = Augmentation(crop_padding=3, flip=True).pixels(given, sample)
    flips = 0
    for i, image in enumerate(torch.from_numpy(given).permute(0, 3, 1, 2)):
        top, left = (int(uniform(7, 3, i, what).item() * 7) for what in (_ROW, _COLUMN))
        expected = TF.crop(TF.pad(image, [3, 3, 3, 3]), top, left, 12, 10)
        if uniform(7, 3, i, _FLIP).item() < 0.5:
            expected, flips = TF.horizontal_flip(expected), flips + 1
        assert torch.equal(made[i], expected)
    assert 10 < flips < 30


def test_every_offset_occurs_equally_often():
    given = np.zeros((6000, 3, 3, 3), dtype=np.uint8)
    given[:, 1, 1] = 255
    made = Augmentation(crop_padding=1).pixels(given, keys(np.arange(6000)))
    counts = (made[:, 0] == 255).sum(0)
    assert counts.sum() == 6000  # the dot never leaves the image: padding 1, and it stands in the middle
    assert ((counts > 550) & (counts < 790)).all()  # 667 each, 5 standard deviations of 24


ALL = Augmentation(crop_padding=2, flip=True, affine=0.2, stroke=0.5, rand_augment=2, erasing=0.5, mixup=0.4, cutmix=1.0)


def test_a_draw_depends_on_seed_epoch_and_sample_alone():
    given = images(8)
    whole = ALL.pixels(given, keys(np.arange(8)))
    for chosen in ([5], [6, 2, 0]):
        assert torch.equal(ALL.pixels(given[chosen], keys(chosen)), whole[chosen])
    assert not torch.equal(ALL.pixels(given, keys(np.arange(8), epoch=4)), whole)
    assert not torch.equal(ALL.pixels(given, keys(np.arange(8), seed=8)), whole)
    crops = Augmentation(min_scale=0.3)
    cut = crops.resized_crops(list(given), (6, 4), keys(np.arange(8)))
    assert cut.shape == (8, 6, 4, 3)
    assert np.array_equal(crops.resized_crops([given[5]], (6, 4), keys([5])), cut[[5]])


def test_torchs_own_random_numbers_are_left_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    given = torch.from_numpy(images(4)).permute(0, 3, 1, 2).float()
    ALL.pixels(images(4), keys(np.arange(4)))
    ALL.erased(given, keys(np.arange(4)))
    assert torch.equal(torch.rand(3), expected)


def test_erasing_puts_the_mean_in_a_rectangle_of_some_images():
    given = torch.ones(400, 3, 12, 12)
    made = Augmentation(erasing=0.25).erased(given, keys(np.arange(400)))
    erased = (made == 0).flatten(1).any(1)
    assert 65 < erased.sum() < 135  # 100, 4 standard deviations of 8.7
    assert set(made.unique().tolist()) == {0.0, 1.0}


def test_mixup_weighs_two_images():
    a, b = torch.rand(200, 3, 5, 4), torch.rand(200, 3, 5, 4)
    made, share = Augmentation(mixup=0.4).mix(a, b, keys(np.arange(200)))
    torch.testing.assert_close(made, share[:, None, None, None] * a + (1 - share[:, None, None, None]) * b)
    assert 0.35 < share.mean() < 0.65 and share.min() < 0.01 and share.max() > 0.99  # Beta(0.4, 0.4): mostly near 0 or 1


def test_cutmix_takes_a_box_whose_share_the_label_has():
    made, share = Augmentation(cutmix=1.0).mix(torch.ones(200, 3, 16, 12), torch.zeros(200, 3, 16, 12), keys(np.arange(200)))
    assert set(made.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(made.mean((1, 2, 3)), share)
    for image in made[:, 0]:
        inside = image == 0
        rows, columns = inside.any(1), inside.any(0)
        assert int(inside.sum()) == int(rows.sum() * columns.sum())  # one rectangle
    assert 0.5 < share.mean() < 0.8  # above 1/2, since a box at the border is cut off


def test_each_image_has_mixup_or_cutmix_where_both_are_on():
    made, _ = Augmentation(mixup=0.4, cutmix=1.0).mix(torch.ones(300, 3, 8, 8), torch.zeros(300, 3, 8, 8), keys(np.arange(300)))
    by_box = torch.tensor([set(image.unique().tolist()) <= {0.0, 1.0} for image in made])
    assert 110 < by_box.sum() < 200


def test_boxes_by_hand():
    inside, kept = boxes(np.array([0.75, 0.0]), np.array([0.5, 0.0]), np.array([0.5, 0.0]), 8, 4)
    expected = np.zeros((8, 4), dtype=bool)
    expected[2:6, 1:3] = True  # a quarter of the area: half of each side
    assert np.array_equal(inside[0], expected) and kept[0] == 0.75
    assert inside[1][:4, :2].all() and inside[1].sum() == 8 and kept[1] == 0.75  # a quarter of the box is in the image


def test_a_partner_is_any_other_sample():
    taken = np.stack([ALL.partners(keys(np.arange(5), epoch), 5) for epoch in range(1000)])  # (epochs, samples)
    counts = np.stack([np.bincount(column, minlength=5) for column in taken.T])
    assert (counts.diagonal() == 0).all() and (counts[~np.eye(5, dtype=bool)] > 190).all()  # 250 each
    many = ALL.partners(keys(np.arange(4000)), 4000)
    assert len(set(many)) > 2400  # 1 - 1/e of them, were they drawn with replacement


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop_padding": -1}, "crop_padding -1 is negative"),
        ({"min_scale": 0.0}, r"min_scale 0.0 is not in \(0, 1\]"),
        ({"rand_augment_magnitude": 31}, "rand_augment_magnitude 31 is not from 0 to 30"),
        ({"erasing": 1.5}, "erasing 1.5 is no probability"),
        ({"mixup": -0.1}, "mixup -0.1 is negative"),
    ],
)
def test_numbers_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Augmentation(**options).check()


def smooth(height=24, width=36):
    """A bright, lopsided blob on black, away from the border."""
    y, x = np.mgrid[:height, :width]
    blob = 255 * np.exp(-(((y - 10) / 3) ** 2) - ((x - 19) / 5) ** 2) + 90 * np.exp(
        -(((y - 14) / 2) ** 2) - ((x - 13) / 2) ** 2
    )
    return np.repeat(np.clip(blob, 0, 255).astype(np.uint8)[None, :, :, None], 3, axis=3)


def drawn(monkeypatch, **values):
    """Every draw in the middle, but those given: from 0 to 1."""
    given = {getattr(augment, name): value for name, value in values.items()}
    monkeypatch.setattr(augment, "uniform", lambda *keys: np.full(len(keys[2]), given.get(keys[-1], 0.5)))


def affine(a, monkeypatch, **values):
    drawn(monkeypatch, **values)
    return Augmentation(affine=a).pixels(smooth(), keys([0])).float()


@pytest.mark.parametrize(
    "values,angle,shift,scale",
    [
        ({}, 0.0, [0, 0], 1.0),
        ({"_ANGLE": 1.0}, -np.degrees(0.2), [0, 0], 1.0),
        ({"_MOVE_X": 1.0}, 0.0, [-0.2 * 18, 0], 1.0),
        ({"_MOVE_Y": 0.0}, 0.0, [0, 0.2 * 12], 1.0),
        ({"_SCALE": 1.0}, 0.0, [0, 0], np.exp(0.2)),
        ({"_SCALE": 0.0}, 0.0, [0, 0], np.exp(-0.2)),
    ],
)
def test_an_affine_map_is_torchvisions(values, angle, shift, scale, monkeypatch):
    made = affine(0.2, monkeypatch, **values)
    given = torch.from_numpy(smooth()).permute(0, 3, 1, 2).float()
    # torchvision moves by whole pixels: moved along the axis, the finer way round
    large = TF.resize(given, [240, 360], interpolation=TF.InterpolationMode.BILINEAR, antialias=False)
    moved = TF.affine(
        large, angle=-angle, translate=[round(10 * s) for s in shift], scale=scale, shear=[0.0],
        interpolation=TF.InterpolationMode.BILINEAR,
    )  # fmt: skip
    expected = TF.resize(moved, [24, 36], interpolation=TF.InterpolationMode.BILINEAR, antialias=True)
    assert (made - expected).abs().mean() < 1.5  # of 255
    if values:
        assert (made - given).abs().mean() > 2.5
    else:
        assert torch.equal(made, given)


def test_an_aspect_makes_wide_and_low(monkeypatch):
    def spread(image):
        weights = image[0, 0] / image[0, 0].sum()
        return [float((weights.sum(1 - axis) * (torch.arange(n) - n / 2) ** 2).sum() ** 0.5) for axis, n in enumerate((24, 36))]

    (high, wide), (higher, wider) = spread(affine(0.2, monkeypatch)), spread(affine(0.2, monkeypatch, _ASPECT=1.0))
    assert wider > 1.1 * wide and higher < 0.9 * high


def test_strokes_become_thicker_or_thinner(monkeypatch):
    given = np.zeros((1, 9, 9, 3), dtype=np.uint8)
    given[:, 3:6] = 200  # a bar of three rows
    for kind, rows in ((1.0, [2, 3, 4, 5, 6]), (0.0, [4]), (0.5, [3, 4, 5])):
        drawn(monkeypatch, _STROKE=0.0, _STROKE_KIND=kind)
        made = Augmentation(stroke=0.5).pixels(given, keys([0]))[0, 0]
        assert sorted(set(torch.nonzero(made == 200)[:, 0].tolist())) == rows
    drawn(monkeypatch, _STROKE=0.0, _STROKE_KIND=0.75)
    assert Augmentation(stroke=0.5).pixels(given, keys([0]))[0, 0, 2, 4] == 100  # half a pixel thicker
    drawn(monkeypatch, _STROKE=0.9)
    assert Augmentation(stroke=0.5).pixels(given, keys([0]))[0, 0, 2, 4] == 0  # not chosen
