"""The contract of every medium, as a test suite to inherit.

Subclass ``StoreContract`` in a test module, set its attributes, and implement ``make_url``; implement ``peek`` where the matrix can
be read without the medium's own code. Needs pytest and hypothesis.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastomp_nvm.arrays import AnyArray
from fastomp_nvm.errors import DataError, FastompError, StoreURLError
from fastomp_nvm.stores.contract import BLOCK_COLUMNS, STORE_DTYPES, FeatureStore
from fastomp_nvm.stores.encoding import ColumnEncoding, TableEncoding
from fastomp_nvm.stores.open import create_store, open_store
from storage_backends.build.builder import StoreBuilder
from storage_backends.build.schema import TableSchema
from storage_backends.testing.opened_contract import OpenedContract

__all__ = ["StoreContract"]

# One inherited test runs in many classes, and its examples share one address, each replacing the store of the one before.
_INHERITED = [HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]


class StoreContract(OpenedContract):
    """The suite; attributes as for ``OpenedContract``."""

    def create(self, url: str, values: AnyArray, y: AnyArray | None = None) -> FeatureStore:
        """Build a store and open it."""
        return create_store(url, values, y)

    def peek(self, url: str) -> AnyArray | None:
        """Return the matrix behind ``url`` without the medium's code, or None where that is impossible."""
        return None

    @pytest.mark.parametrize("dtype", STORE_DTYPES)
    def test_values_come_back_bit_for_bit(self, url: str, values: AnyArray, dtype: str) -> None:
        """The matrix is the data, transposed and rounded to the dtype, also when read without the medium's code."""
        expected = values.T.astype(dtype)
        with create_store(url, values, dtype=dtype) as store:
            assert store.matrix.dtype == np.dtype(dtype)
            assert store.matrix.tobytes() == expected.tobytes()
        seen = self.peek(url)
        if seen is not None:
            assert seen.dtype == np.dtype(dtype)
            assert seen.tobytes() == expected.tobytes()

    def test_the_matrix_is_a_view_that_cannot_be_written(self, url: str, values: AnyArray) -> None:
        """The matrix owns nothing, is C-ordered and 64-byte aligned, and no flag makes it writable."""
        with create_store(url, values) as store:
            matrix = store.matrix
            assert not matrix.flags.owndata
            assert not matrix.flags.writeable
            assert matrix.flags.c_contiguous
            assert matrix.ctypes.data % 64 == 0
            assert store.matrix.ctypes.data == matrix.ctypes.data
            with pytest.raises(ValueError, match="WRITEABLE"):
                matrix.flags.writeable = True

    def test_statistics_are_those_of_the_stored_values(self, url: str, values: AnyArray) -> None:
        """Mean, centred norm, minimum and maximum agree with NumPy in float64."""
        with create_store(url, values, dtype="float16") as store:
            stored = store.matrix.astype(np.float64)
            mean = stored.mean(axis=1)
            np.testing.assert_allclose(store.statistics.mean, mean, rtol=1e-12, atol=1e-15)
            np.testing.assert_allclose(store.statistics.norm, np.linalg.norm(stored - mean[:, None], axis=1), rtol=1e-12)
            np.testing.assert_array_equal(store.statistics.minimum, stored.min(axis=1))
            np.testing.assert_array_equal(store.statistics.maximum, stored.max(axis=1))

    def test_features_of_several_columns_stay_together(self, url: str, values: AnyArray) -> None:
        """Grouped columns are adjacent, in one block, with their names and their Gram matrix."""
        groups: dict[str, list[str | int]] = {"wide": list(range(1, 252)), "pair": [598, "f255"]}
        with create_store(url, values, groups=groups, dtype="float64") as store:
            layout = store.layout
            assert (layout.n_features, layout.n_columns) == (600 - 250 - 1, 600)
            assert set(layout.blocks) <= set(layout.offsets)
            assert np.diff(layout.blocks).max() <= BLOCK_COLUMNS
            wide = store.names.index("wide")
            assert layout.offsets[wide + 1] - layout.offsets[wide] == 251
            pair = store.names.index("pair")
            first = int(layout.offsets[pair])
            assert list(store.column_names[first : first + 2]) == ["f598", "f255"]
            columns = values[:, [598, 255]]
            np.testing.assert_array_equal(store.matrix[first : first + 2], columns.T)
            centred = columns - columns.mean(axis=0)
            assert len(store.statistics.grams) == 2
            np.testing.assert_allclose(store.statistics.grams[1], centred.T @ centred, rtol=1e-12)

    def test_targets_keep_order_values_and_classes(self, url: str, values: AnyArray) -> None:
        """Numeric and class targets come back as given, the first one first."""
        labels = np.array(["no", "yes"])[(values[:, 0] > 0).astype(int)]
        with create_store(url, values, {"class": labels, "amount": values[:, 1]}) as store:
            assert list(store.targets) == ["class", "amount"]
            assert store.targets["class"].classes == ("no", "yes")
            np.testing.assert_array_equal(store.targets["class"].values, (values[:, 0] > 0).astype(float))
            assert store.targets["amount"].classes == ()
            np.testing.assert_array_equal(store.targets["amount"].values, values[:, 1])

    def test_names_come_back(self, url: str, values: AnyArray) -> None:
        """Names are kept as given, whatever characters they have, and numbered when there are none."""
        names = [f"gène {number} \"'\n\U0001f9ec" for number in range(600)]
        with create_store(url, values, names=names) as store:
            assert list(store.names) == names
            assert list(store.column_names) == names
        with create_store(url, values, replace=True) as store:
            assert (len(store.names), store.names[0], store.names[-1]) == (600, "f0", "f599")

    def test_the_encoding_and_the_identifiers_come_back(self, url: str, values: AnyArray) -> None:
        """How a table became the store, and the identifiers of its rows, are kept as given; dropped features have no encoding."""
        columns = {"when": ColumnEncoding("date", fill=3.5), "tówn": ColumnEncoding("category", ("Bern", "(missing)"), 1)}
        encoding = TableEncoding(columns, "drop-feature", ("-99", "n.a."), "'", ",")
        n_obs, ids = len(values), [f"pérson {row}" for row in range(len(values))]
        groups: list[tuple[str, list[str]]] = [("when", ["when"]), ("tówn", ["tówn=Bern", "tówn=(missing)"]), ("gone", ["gone"])]
        schema = replace(TableSchema.grouped(n_obs, groups, encoding), ids=ids)
        for replacing, gap in ((False, "gone"), (True, "when")):
            with StoreBuilder(url, schema, missing="drop-feature", replace=replacing) as builder:
                tile = values[:, :4].copy()
                tile[0, {"gone": 3, "when": 0}[gap]] = np.nan
                builder.write_rows(0, tile)
                builder.finish()
            with open_store(url) as store:
                assert store.encoding == replace(encoding, columns={name: each for name, each in columns.items() if name != gap})
                assert list(store.ids or ()) == ids
        with create_store(url, values, replace=True) as store:
            assert (store.encoding, store.ids) == (TableEncoding(), None)

    def test_medians_are_kept(self, url: str, values: AnyArray) -> None:
        """Under ``median`` the encoding holds the median of every column of numbers, whether it has missing values or not."""
        with_gaps = values[:, :3].copy()
        with_gaps[::5, 1] = np.nan
        with create_store(url, with_gaps, dtype="float64", missing="median") as store:
            assert store.encoding is not None
            found = np.array([store.encoding.columns[name].fill for name in store.names], dtype=np.float64)
            np.testing.assert_allclose(found, np.nanmedian(with_gaps, axis=0), rtol=1e-15)

    def test_a_store_is_not_overwritten_unasked(self, url: str, values: AnyArray) -> None:
        """A second build is refused without ``replace`` and the first store is untouched."""
        with create_store(url, values) as store:
            before = store.layout.fingerprint
        with pytest.raises(StoreURLError, match="replace"):
            create_store(url, values[:, :3])
        with open_store(url) as store:
            assert store.layout.fingerprint == before

    def test_replacing_leaves_open_stores_alone(self, url: str, values: AnyArray) -> None:
        """A store opened before it was replaced keeps its old content, whole."""
        with create_store(url, values) as old:
            with create_store(url, -values, replace=True) as new:
                np.testing.assert_array_equal(new.matrix, -old.matrix)
            np.testing.assert_array_equal(old.matrix, values.T.astype("float32"))
            old.verify()

    def test_an_aborted_build_leaves_nothing(self, url: str, place: Path, values: AnyArray) -> None:
        """An error inside a build, or no ``finish``, leaves no store and no file."""
        schema = TableSchema.plain(40, [f"c{number}" for number in range(600)])
        with StoreBuilder(url, schema) as builder:
            builder.write_rows(0, values)
        with pytest.raises(DataError, match="observations"), StoreBuilder(url, schema) as builder:
            builder.finish()
        assert not self._exists(url)
        assert list(place.iterdir()) == []
        with pytest.raises(StoreURLError):
            open_store(url)

    def test_an_aborted_replacement_keeps_the_old_store(self, url: str, values: AnyArray) -> None:
        """A build that fails while replacing changes nothing."""
        with create_store(url, values) as store:
            before = store.layout.fingerprint
        spoiled = values.copy()
        spoiled[3, 4] = np.inf
        with pytest.raises(DataError, match="row 4 of column 'f4' is infinite"):
            create_store(url, spoiled, replace=True)
        with open_store(url) as store:
            assert store.layout.fingerprint == before

    def test_a_build_in_progress_is_invisible(self, url: str, values: AnyArray) -> None:
        """Nothing can be opened before ``finish``."""
        schema = TableSchema.plain(40, [f"c{number}" for number in range(600)])
        with StoreBuilder(url, schema) as builder:
            builder.write_rows(0, values)
            assert not self._exists(url)
            with pytest.raises(StoreURLError):
                open_store(url)
            builder.finish()
        assert self._exists(url)

    def test_of_two_builders_the_second_is_refused(self, url: str, values: AnyArray) -> None:
        """A store committed while another build was under way is not overwritten by it."""
        schema = TableSchema.plain(40, [f"c{number}" for number in range(600)])
        with StoreBuilder(url, schema) as slow:
            slow.write_rows(0, values)
            create_store(url, -values).close()
            with pytest.raises(StoreURLError):
                slow.finish()
        with open_store(url) as store:
            np.testing.assert_array_equal(store.matrix, -values.T.astype("float32"))

    @pytest.mark.parametrize("suffix", ["?colour=blue", "?profile=", "#part"])
    def test_unknown_parameters_are_refused(self, url: str, values: AnyArray, suffix: str) -> None:
        """A parameter the medium does not know is an error, not ignored."""
        with pytest.raises(StoreURLError, match="takes none"):
            create_store(url + suffix, values)

    def test_the_smallest_store(self, url: str) -> None:
        """One observation of one feature is a store."""
        with create_store(url, [[2.5]], [1.0]) as store:
            assert store.matrix.tolist() == [[2.5]]
            assert (store.statistics.mean.tolist(), store.statistics.norm.tolist()) == ([2.5], [0.0])
            store.verify()

    @settings(max_examples=15, deadline=None, suppress_health_check=_INHERITED)
    @given(n_obs=st.integers(1, 50), n_columns=st.integers(1, 600), dtype=st.sampled_from(STORE_DTYPES), seed=st.integers(0, 99))
    def test_any_shape_survives(self, url: str, n_obs: int, n_columns: int, dtype: str, seed: int) -> None:
        """Every shape and dtype comes back bit for bit, and dropping features gives the store of the others."""
        generator = np.random.default_rng(seed)
        values = generator.normal(size=(n_obs, n_columns))
        with create_store(url, values, dtype=dtype, replace=True) as store:
            assert store.matrix.tobytes() == values.T.astype(dtype).tobytes()
            store.verify()
        keep = generator.random(n_columns) < 0.7
        keep[0] = True
        spoiled = values.copy()
        spoiled[generator.integers(n_obs), ~keep] = np.nan
        with create_store(url, spoiled, dtype=dtype, missing="drop-feature", replace=True) as store:
            assert store.matrix.tobytes() == values[:, keep].T.astype(dtype).tobytes()
            assert list(store.names) == [f"f{column}" for column in np.flatnonzero(keep)]
            store.verify()
        seen = self.peek(url)
        if seen is not None:
            assert seen.tobytes() == values[:, keep].T.astype(dtype).tobytes()

    def test_all_errors_are_ours(self, url: str) -> None:
        """Unusable input raises our errors only."""
        hopeless: object
        for hopeless in (None, 3, "text", [], [[]], [[["deep"]]], np.zeros((0, 3)), np.zeros((3, 0))):
            with pytest.raises(FastompError):
                create_store(url, hopeless)
        assert not self._exists(url)
