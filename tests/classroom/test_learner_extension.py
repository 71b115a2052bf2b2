"""What the lab's server says of a class, and takes for it: to nobody but the learner whose lab it is."""

from __future__ import annotations

import http.cookiejar
import json
import urllib.request
from urllib.error import HTTPError

import pytest

from tests.browser.lab import started_lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with started_lab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


def status_of(opener: urllib.request.OpenerDirector, request: urllib.request.Request) -> int:
    try:
        with opener.open(request) as answer:
            return answer.status
    except HTTPError as error:
        return error.code


def test_without_a_login_nothing_is_said_and_nothing_is_taken(lab):
    nobody = urllib.request.build_opener()
    news = urllib.request.Request(f"{lab.server}/course/class/news")
    press = urllib.request.Request(f"{lab.server}/course/class/tell", data=b'{"kind": "slower"}')
    assert [status_of(nobody, request) for request in (news, press)] == [403, 403]


def test_a_page_of_another_site_cannot_press_a_button(lab):
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar := http.cookiejar.CookieJar()))
    browser.open(lab.address).read()  # the learner logs in, and has the cookies from then on
    (xsrf,) = (cookie.value for cookie in jar if cookie.name == "_xsrf")
    address, slower = f"{lab.server}/course/class/tell", json.dumps({"kind": "slower"}).encode()
    foreign = urllib.request.Request(address, data=slower, headers={"Origin": "https://example.org"})
    forged = urllib.request.Request(address, data=slower, headers={"X-XSRFToken": "guessed"})
    own = urllib.request.Request(address, data=slower, headers={"X-XSRFToken": xsrf or ""})
    assert [status_of(browser, request) for request in (foreign, forged, own)] == [404, 403, 200]


@pytest.mark.parametrize("told", ["[]", "{}", '{"kind": "checked"}', '{"kind": "stuck", "on": 1}', "no JSON"])
def test_only_what_a_page_has_to_tell_is_taken(lab, told):
    headers = {"Authorization": f"token {lab.token}"}
    request = urllib.request.Request(f"{lab.server}/course/class/tell", data=told.encode(), headers=headers)
    assert status_of(urllib.request.build_opener(), request) == 400
