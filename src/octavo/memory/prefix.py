"""Which page holds the content of a key; knows keys and pages, not who holds them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

NONE = -1


class PrefixIndex:
    """Map of published keys to pages.

    A key has one *indexed* page, the one that is found. When two requests computed the same
    content, the second page is a *twin*: it keeps the key's id in `hash_id` but is not found until
    the indexed page is given up. Every key but a first one has a parent; `children` counts the
    published keys after a key. Ids of keys are small integers and are used again.
    """

    def __init__(self, pages: int):
        self.pages = pages
        self.hash_id = array("i", [NONE]) * pages
        self.ids: dict[bytes, int] = {}
        self.keys: list[bytes] = []
        self.page = array("i")
        self.parent = array("i")
        self.children = array("i")
        self.twins: dict[int, list[int]] = {}
        self._unused_ids: list[int] = []

    def __len__(self) -> int:
        return len(self.ids)

    def find(self, key: bytes) -> int:
        """Indexed page of `key`, or -1."""
        identity = self.ids.get(key, NONE)
        return NONE if identity == NONE else self.page[identity]

    def look_up(self, keys: Sequence[bytes]) -> list[int]:
        """Pages of the longest run of published keys from the first one on."""
        found = []
        ids, pages = self.ids, self.page
        for key in keys:
            identity = ids.get(key)
            if identity is None:
                break
            found.append(pages[identity])
        return found

    def key_of(self, page: int) -> bytes:
        """The key of a page that is cached, or indexed at least."""
        return self.keys[self.hash_id[page]]

    def chain_of(self, page: int) -> list[bytes]:
        """The keys from the first page of a prefix to an indexed page."""
        chain = []
        identity = self.hash_id[page]
        while identity != NONE:
            chain.append(self.keys[identity])
            identity = self.parent[identity]
        return chain[::-1]

    def is_indexed(self, page: int) -> bool:
        identity = self.hash_id[page]
        return identity != NONE and self.page[identity] == page

    def has_twin(self, page: int) -> bool:
        """Whether another page of the same content would inherit the key of an indexed page."""
        return self.hash_id[page] in self.twins

    def has_children_beside(self, page: int, child: int) -> bool:
        """Whether published pages continue an indexed page, other than page `child` (-1: any)."""
        identity = self.hash_id[page]
        own = child != NONE and self.parent[self.hash_id[child]] == identity
        return self.children[identity] > own

    def insert(self, page: int, key: bytes, parent_key: bytes | None) -> bool:
        """Index a key that is not indexed; False if its parent is not, then nothing changes."""
        parent = NONE
        if parent_key is not None:
            parent = self.ids.get(parent_key, NONE)
            if parent == NONE:
                return False
        if self._unused_ids:
            identity = self._unused_ids.pop()
            self.keys[identity] = key
            self.page[identity] = page
            self.parent[identity] = parent
            self.children[identity] = 0
        else:
            identity = len(self.keys)
            self.keys.append(key)
            self.page.append(page)
            self.parent.append(parent)
            self.children.append(0)
        if parent != NONE:
            self.children[parent] += 1
        self.ids[key] = identity
        self.hash_id[page] = identity
        return True

    def add_twin(self, page: int, key: bytes) -> None:
        """Note that `page` has the content of an indexed key too."""
        identity = self.ids[key]
        self.hash_id[page] = identity
        self.twins.setdefault(identity, []).append(page)

    def replace(self, page: int, key: bytes) -> int:
        """Make `page` the indexed page of a published key; returns the page it was before."""
        identity = self.ids[key]
        before = self.page[identity]
        self.hash_id[before] = NONE
        self.page[identity] = page
        self.hash_id[page] = identity
        return before

    def give_up(self, page: int) -> bool:
        """The last holder of `page` leaves; True if the page stays findable.

        A twin is dropped; an indexed page with a twin hands its key to the twin, which is held.
        """
        identity = self.hash_id[page]
        if identity == NONE:
            return False
        twins = self.twins.get(identity)
        if twins is None:
            return True
        if self.page[identity] == page:
            self.page[identity] = twins.pop(0)
        else:
            twins.remove(page)
        self.hash_id[page] = NONE
        if not twins:
            del self.twins[identity]
        return False

    def forget(self, page: int) -> bytes:
        """Drop the key of an indexed page that was evicted; the key."""
        identity = self.hash_id[page]
        self.hash_id[page] = NONE
        parent = self.parent[identity]
        if parent != NONE:
            self.children[parent] -= 1
        key = self.keys[identity]
        del self.ids[key]
        self.keys[identity] = b""
        self.page[identity] = NONE
        self._unused_ids.append(identity)
        return key
