"""A reverse proxy that breaks chosen requests: flips bytes, cuts, loses replies, delays, lies.

    with FaultProxy(server.url) as proxy:
        rule = proxy.on("PUT", r"part-\\d+", flip_byte())
        ... a client at server.at(proxy.url) ...
        assert rule.hits == 1

An action is any function of a `Passage` and its `Rule`; those here are the common ones.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tests.servers.messages import ClientGone, Request, Response
from tests.servers.reverseproxy import Passage, ReverseProxy

WAIT_S = 30.0


@dataclass(kw_only=True, eq=False)
class Rule:
    """Which requests are broken, and how; also the handle by which a test steers and watches it.

    Attributes:
        method: a regular expression for the whole method.
        target: one to be found in path and query.
        action: what happens.
        nth: the first matching request that is broken, from 1.
        times: how many are broken from there on; `None`: all.
        when: a further condition.
        hits: how many were broken so far.
        answers: what the store answered to broken requests that were forwarded.
    """

    method: re.Pattern[str]
    target: re.Pattern[str]
    action: Action
    nth: int = 1
    times: int | None = 1
    when: Callable[[Request], bool] = lambda _request: True
    hits: int = 0
    answers: list[Response] = field(default_factory=list)
    _seen: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _released: bool = False
    _done: int = 0

    def wait_for_hit(self, hits: int = 1, *, timeout_s: float = WAIT_S) -> None:
        """Block until so many requests were broken; a TimeoutError after `timeout_s`."""
        self._wait(lambda: self.hits >= hits, timeout_s, f"{hits} hits of {self.target.pattern}")

    def wait_until_done(self, hits: int = 1, *, timeout_s: float = WAIT_S) -> None:
        """Block until the action has ended for so many requests; a TimeoutError after `timeout_s`."""
        self._wait(lambda: self._done >= hits, timeout_s, f"the end of {self.target.pattern}")

    def release(self) -> None:
        """Let every request go on that is parked or held here, now and later."""
        with self._changed:
            self._released = True
            self._changed.notify_all()

    def wait_for_release(self, closing: threading.Event) -> None:
        """For actions: block until `release`.

        Raises:
            ClientGone: the proxy ends first; the request is then never forwarded.
        """
        with self._changed:
            while not self._changed.wait_for(lambda: self._released, 0.05):
                if closing.is_set():
                    raise ClientGone

    def _takes(self, request: Request) -> bool:
        matches = self.method.fullmatch(request.method) and self.target.search(request.target) and self.when(request)
        if not matches:
            return False
        with self._changed:
            self._seen += 1
            if self._seen < self.nth or (self.times is not None and self.hits >= self.times):
                return False
            self.hits += 1
            self._changed.notify_all()
            return True

    def _ended(self) -> None:
        with self._changed:
            self._done += 1
            self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, timeout_s):
                raise TimeoutError(f"waited {timeout_s} s for {what}")


Action = Callable[[Passage, Rule], None]


class FaultProxy(ReverseProxy):
    """Forwards everything but what a rule breaks; of several matching rules the first acts."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self._rules: list[Rule] = []

    def on(
        self,
        method: str,
        target: str,
        action: Action,
        *,
        nth: int = 1,
        times: int | None = 1,
        when: Callable[[Request], bool] = lambda _request: True,
    ) -> Rule:
        """Add a rule; see there for the arguments."""
        rule = Rule(
            method=re.compile(method), target=re.compile(target), action=action, nth=nth, times=times, when=when
        )
        self._rules = [*self._rules, rule]
        return rule

    def clear(self) -> None:
        """Forget all rules; what is held or parked stays so until its rule releases it."""
        self._rules = []

    def release(self) -> None:
        """Release every rule."""
        for rule in self._rules:
            rule.release()

    def handle(self, passage: Passage) -> None:
        """Let the first matching rule act, or forward."""
        rule = next((rule for rule in self._rules if rule._takes(passage.request)), None)
        if rule is None:
            return super().handle(passage)
        passage.exchange.fault = getattr(rule.action, "__qualname__", "action").split(".")[0]
        try:
            rule.action(passage, rule)
        finally:
            rule._ended()


def _forward(passage: Passage, rule: Rule, request: Request | None = None) -> Response:
    response = passage.forward(request)
    rule.answers.append(response)
    return response


def flip_byte(offset: int = -1) -> Action:
    """Flip one bit of one byte of the request's body on its way; the client is answered as the store answers."""

    def act(passage: Passage, rule: Rule) -> None:
        body = bytearray(passage.request.body)
        body[offset] ^= 1
        passage.reply(_forward(passage, rule, replace(passage.request, body=bytes(body))))

    return act


def cut_request(after: int, *, reset: bool = True) -> Action:
    """Break both connections when so many bytes of the request's body have reached the store."""

    def act(passage: Passage, _rule: Rule) -> None:
        try:
            passage.proxy.send(passage.request, stop_after=after, reset=reset)
        finally:
            passage.hang_up(reset=reset)

    return act


def cut_reply(after: int, *, reset: bool = True) -> Action:
    """Answer as the store does, but break the connection after so many bytes of the body."""

    def act(passage: Passage, rule: Rule) -> None:
        passage.reply(_forward(passage, rule), cut_after=after, reset=reset)

    return act


def drop_reply(*, reset: bool = True) -> Action:
    """Let the request take effect and close the client's connection without an answer."""

    def act(passage: Passage, rule: Rule) -> None:
        _forward(passage, rule)
        passage.hang_up(reset=reset)

    return act


def drop_request(*, reset: bool = True) -> Action:
    """Close the client's connection; the store never hears of the request."""

    def act(passage: Passage, _rule: Rule) -> None:
        passage.hang_up(reset=reset)

    return act


def answer(
    status: int, body: bytes = b"", *, headers: Mapping[str, str] | None = None, after_forwarding: bool = False
) -> Action:
    """Answer this instead of the store; `after_forwarding` the request has taken effect all the same."""

    def act(passage: Passage, rule: Rule) -> None:
        if after_forwarding:
            _forward(passage, rule)
        passage.reply(Response(status=status, headers=tuple((headers or {}).items()), body=body))

    return act


def hold() -> Action:
    """Close the client's connection at once, and forward the request when the rule is released.

    So the store gets a request whose sender has given up, or is dead, long ago.
    """

    def act(passage: Passage, rule: Rule) -> None:
        passage.hang_up()
        rule.wait_for_release(passage.proxy.closing)
        _forward(passage, rule)

    return act


def park() -> Action:
    """Forward the request only when the rule is released; the client waits."""

    def act(passage: Passage, rule: Rule) -> None:
        rule.wait_for_release(passage.proxy.closing)
        passage.reply(_forward(passage, rule))

    return act


def park_body(after: int) -> Action:
    """Send so many bytes of the body to the store and the rest when the rule is released; the client waits."""

    def act(passage: Passage, rule: Rule) -> None:
        released = lambda: rule.wait_for_release(passage.proxy.closing)  # noqa: E731
        response = passage.proxy.send(passage.request, stop_after=after, at_stop=released)
        rule.answers.append(response)
        passage.reply(response)

    return act


def park_reply() -> Action:
    """Let the request take effect at once, and answer when the rule is released; the client waits."""

    def act(passage: Passage, rule: Rule) -> None:
        response = _forward(passage, rule)
        rule.wait_for_release(passage.proxy.closing)
        passage.reply(response)

    return act


def rewrite(
    *,
    request: Callable[[Request], Request] = lambda request: request,
    response: Callable[[Response], Response] = lambda response: response,
) -> Action:
    """Change the request, the response or both on their way; lengths follow the bodies."""

    def act(passage: Passage, rule: Rule) -> None:
        passage.reply(response(_forward(passage, rule, request(passage.request))))

    return act
