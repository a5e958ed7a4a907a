"""Questions about NextFit, as nobody taught them: (questions, words that a right answer holds)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from nextfit.accept.case import Case, Lane, user
from nextfit.text.events import Reply

FACTS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("In one line, what would you call NextFit?", "Give me the purpose of NextFit.", "What job does NextFit do?"), ("engine", "Flash-Next")),
    (("I just cloned it; which command gets a server going?", "What is the quickest way to get the server up?", "With which command does one start serving?"), ("make serve",)),
    (("How would a contributor execute the test suite?", "Which command should run all your tests?", "What do I enter for testing?"), ("make test",)),
    (("Name the network that NextFit was built to serve.", "Which large model is meant to be served here?", "What is the model behind NextFit?"), ("Flash-Next",)),
    (("What is behind the project's unusual name?", "The name NextFit: where is it from?", "Why was the name NextFit picked?"), ("bin packing",)),
    (("May my weights be a GGUF?", "Which kinds of weight files will it open?", "Does it open safetensors files?"), ("safetensors", "GGUF")),
    (("How can I examine a download before using it?", "Which subcommand checks a checkpoint's tensors?", "How would I look into a checkpoint?"), ("nextfit inspect",)),
    (("I want to talk to it from my shell; how?", "Which subcommand lets me talk in a terminal?", "Is a conversation in the terminal possible?"), ("nextfit chat",)),
    (("How can I see in advance if my memory suffices?", "Which subcommand tells me about memory needs?", "How is memory planned here?"), ("nextfit plan",)),
    (("Please define a draft token.", "What purpose do draft tokens have?", "Explain to me what the draft head is for."), ("guess",)),
    (("Would an answer differ if drafting were off?", "Is any token altered by a draft?", "Can speculation make the output different?"), ("never changes",)),
    (("Two prompts share a beginning: what is reused?", "What is the purpose of the prefix cache?", "What gets kept from earlier prompts?"), ("prefix cache",)),
    (("For one token, how many experts get picked?", "Out of how many experts are ten chosen?", "What are the expert counts of Flash-Next?"), ("512",)),
    (("Flash-Next consists of how many layers?", "What is the layer count of Flash-Next?", "How many layers were stacked in the model?"), ("48",)),
    (("Sparse attention: what does it actually read?", "In what way is the attention sparse?", "Which blocks does sparse attention pick?"), ("blocks",)),
    (("Please describe what a delta net keeps.", "What happens to old things in a delta net?", "The delta net layers: what is their state?"), ("matrix",)),
    (("What is stored in the n-gram table?", "Why does the model own an n-gram table?", "What would I find in that big n-gram table?"), ("hashed",)),
    (("What is the maximum length of a prompt?", "How many tokens can the context hold at most?", "Up to which length may a context grow?"), ("262,144",)),
    (("Will my existing OpenAI scripts work?", "Which API do clients have to speak?", "Through what API is the server reached?"), ("OpenAI API",)),
    (("How do I keep strangers off my server?", "Can requests be made to carry a key?", "Where do API keys come in?"), ("keys",)),
    (("Suppose the engine crashes: what then?", "What does the flag --restart bring?", "If the engine should die, what are clients told?"), ("--restart",)),
    (("I own no graphics card. Can I use it?", "Would a plain laptop processor do?", "Must I have a GPU?"), ("CPU",)),
    (("Which licence covers NextFit?", "On what licence terms may I use it?", "Name the licence of this project."), ("Apache",)),
    (("At which address can Prometheus scrape it?", "Where would I read the server's metrics?", "How is the server watched by Prometheus?"), ("/metrics",)),
    (("How do I shut the running server down?", "Which key combination ends the server?", "What must I press so that the server stops?"), ("Control-C",)),
    (("How many residual streams run through the model?", "Hyper-connections: what are they for?", "What do hyper-connections read and write?"), ("streams",)),
    (("How does the scheduler treat many users?", "Do several requests get equal shares?", "By which rule are requests scheduled?"), ("equal share",)),
    (("NextFit is programmed in which language?", "Which library does NextFit compute with?", "What was NextFit written in?"), ("Python",)),
)  # fmt: skip


def _holds(words: Sequence[str], reply: Reply) -> bool:
    return all(w.lower() in reply.content.lower() for w in words)


def lanes(r: Random, each: int) -> list[Lane]:
    """`each` of the questions about every fact, at most three."""
    found = []
    for questions, words in FACTS:
        for text in r.sample(questions, min(each, len(questions))):
            right = lambda reply, words=words: _holds(words, reply)  # noqa: E731
            found.append([Case("questions about NextFit", "all", (user(text),), ", ".join(words), right)])
    return found
