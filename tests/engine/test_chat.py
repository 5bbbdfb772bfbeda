"""Conversations: the checkpoint's template makes a prompt of them, and what is no conversation is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.errors import RequestError

DATA = Path(__file__).parents[1] / "data" / "v41-tiny-bf16"
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "[{{ message.role }}] {{ message.content }}{% if message.name %} by {{ message.name }}{% endif %}"
    "{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
)
USER = {"role": "user", "content": "the lamp"}
LONGER = [{"role": "system", "content": "be brief"}, USER, {"role": "assistant", "content": "is lit"}, USER]


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chatty")
    for file in DATA.iterdir():
        if not file.name.startswith("golden"):
            shutil.copy(file, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    with LLM(folder, disable_log_stats=True, num_pages=64, max_num_seqs=8) as llm:
        yield llm


def test_a_reply_is_the_completion_of_the_templates_text(chatty):
    (output,) = chatty.chat(LONGER, GREEDY)
    text = "[system] be brief\n[user] the lamp\n[assistant] is lit\n[user] the lamp\n[assistant] "
    ids = [0, *chatty.get_tokenizer().encode(text, add_special_tokens=False)]
    assert output.prompt == chatty.get_tokenizer().decode([0], skip_special_tokens=False) + text
    assert output.prompt_token_ids == ids  # one begin token: the template's
    assert output.outputs == chatty.generate([ids], GREEDY)[0].outputs


def test_several_conversations_come_in_order_and_each_with_its_parameters(chatty):
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (2, 5)]
    outputs = chatty.chat([[USER], LONGER], params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [2, 5]
    assert outputs[1].prompt == chatty.chat(LONGER, GREEDY)[0].prompt
    assert chatty.chat([]) == []


def test_without_the_generation_prompt_the_text_ends_with_the_last_message(chatty):
    (output,) = chatty.chat([USER], GREEDY, add_generation_prompt=False)
    assert output.prompt.endswith("[user] the lamp\n")


def test_further_keys_are_the_templates(chatty):
    assert chatty.chat([{**USER, "name": "Ann"}], GREEDY)[0].prompt.endswith("the lamp by Ann\n[assistant] ")


def test_a_streamed_reply_is_the_same(chatty):
    pieces = list(chatty.stream({"messages": LONGER}, GREEDY))
    assert "".join(piece.text for piece in pieces) == chatty.chat(LONGER, GREEDY)[0].outputs[0].text


@pytest.mark.parametrize(
    ("conversation", "words"),
    [
        ([], "messages is empty"),
        ([USER, "hi"], "message 1 must be a dict with 'role' and 'content', got str"),
        ([{"content": "x"}], "message 0 needs 'role'"),
        ([{"role": "user"}], "message 0 needs 'content'"),
        ([{"role": "usr", "content": "x"}], "got 'usr'; did you mean 'user'?"),
        ([{"role": None, "content": "x"}], "role must be one of system, developer, user, assistant, tool, got None"),
        ([{"role": "user", "content": ["x"]}], "message 0: content must be text, got list"),
        ([{"role": "user", "content": "\ud800"}], "surrogate"),
        ([{"role": "tool", "content": "x"}], "the chat template refuses this conversation: no tools here"),
        ("hi", "messages must be a list of dicts with 'role' and 'content', got str"),
    ],
)
def test_what_is_no_conversation_is_refused_with_the_rule_and_harms_no_other(chatty, conversation, words):
    refused, served = chatty.chat([conversation, [USER]], GREEDY)
    assert words in refused.error
    assert served.error is None
    with pytest.raises(RequestError):
        chatty.stream({"messages": conversation}, GREEDY)


def test_wrong_arguments_raise(chatty):
    for wrong in ("hi", USER, 3, None):
        with pytest.raises(RequestError, match="messages must be a list of dicts"):
            chatty.chat(wrong)
    (output,) = chatty.generate({"messages": [USER], "prompt": "x"})
    assert "either 'messages' or 'prompt'" in output.error
    (output,) = chatty.generate({"messages": [USER], "add_generation_prompt": 1})
    assert "add_generation_prompt must be True or False, got 1" in output.error


def test_a_checkpoint_without_template_says_so(llm):
    with pytest.raises(RequestError, match=r"no chat template; add a chat_template.jinja"):
        llm.chat([USER])
    with pytest.raises(RequestError, match="no chat template"):
        llm.stream({"messages": [USER]})


def test_abort_without_ids_ends_everything(chatty):
    long = SamplingParams(temperature=0, max_tokens=500, ignore_eos=True)
    streams = [chatty.stream({"messages": [USER]}, long) for _ in range(2)]
    heads = [next(stream) for stream in streams]
    chatty.abort()
    assert all(head.finish_reason is None for head in heads)
    assert [[*stream][-1].finish_reason for stream in streams] == ["abort", "abort"]
    assert not chatty.engine.has_unfinished_requests()
    chatty.engine.scheduler.audit()
