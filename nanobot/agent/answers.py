"""The words that answer a question: yes, always, no, as people say them."""

from nanobot.agent.turn import Answer

_WORDS = {
    Answer.NO: (
        "no n nope nein non não nao nej nie nee нет ні hayır لا "
        "いいえ だめ 아니요 아니 不 不行 不要 否 không tidak 👎 ❌"
    ),
    Answer.ONCE: "yes y yep ja oui si sí sim da tak да так evet نعم はい いいよ 네 예 是 好 好的 可以 行 có ya 👍 ✅",
    Answer.ALWAYS: (
        "always a immer toujours siempre sempre alltid zawsze altijd всегда завжди دائما いつも 항상 总是 總是 luôn"
    ),
}
_ANSWERS = {word: answer for answer, words in _WORDS.items() for word in words.split()}


def answer_in(text: str) -> Answer | None:
    """The answer that a word is; None for anything else."""
    return _ANSWERS.get(text.strip().strip(".!。！").strip().casefold())
