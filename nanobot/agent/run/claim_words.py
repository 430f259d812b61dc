"""The words of `claims`: what actions are called in English and Chinese, and which tools do them.

A table a language, so that another language is another table. A deed is a kind of action. Its verbs are plain words,
and what must stand before and behind them is said once a language: so that little has to be compiled, and only what an
answer makes necessary.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

READING = frozenset({"read_file", "list_dir", "glob", "grep", "web_search", "web_fetch"})
_WRITING = frozenset({"write_file", "edit_file", "exec"})

DEEDS: dict[str, frozenset[str]] = {
    "write": _WRITING,
    "run": frozenset({"exec"}),
    "send": frozenset({"message", "exec"}),
    "schedule": _WRITING | {"cron"},
    "look": READING | {"exec"},
    "delete": _WRITING,
    "delegate": frozenset({"spawn"}),
    "work": _WRITING | {"message", "cron", "spawn"},
}
"""A deed and the tools that can do it. "work" is any of them that is not only a look."""

KNOWN_TOOLS = READING | {"write_file", "edit_file", "exec", "message", "message_user", "spawn", "cron"}
LATER = frozenset({"spawn", "cron"})
"""Who called one of these may say that something will be done: it is on its way."""


class Wording:
    """A pattern, case ignored, compiled when it is first asked for: most answers need few of them."""

    __slots__ = ("_compiled", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._compiled: re.Pattern[str] | None = None

    @property
    def pattern(self) -> re.Pattern[str]:
        """The compiled pattern."""
        if self._compiled is None:
            self._compiled = re.compile(self._text, re.IGNORECASE)
        return self._compiled

    def found_in(self, text: str) -> bool:
        """Whether it occurs."""
        return self.pattern.search(text) is not None


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around a verb: `before` up to it, `behind` from it on."""

    before: Wording
    behind: Wording | None = None

    def fits(self, clause: str, start: int, end: int) -> bool:
        """Whether the words from `start` to `end` stand in it."""
        return self.before.found_in(clause[:start]) and (self.behind is None or self.behind.found_in(clause[end:]))


@dataclass(frozen=True, slots=True)
class Speech:
    """A way to speak of deeds: verbs with the deeds they may mean, and the frames that make a statement of them."""

    verbs: Mapping[str, frozenset[str]]
    frames: tuple[Frame, ...]
    parted: bool
    """Whether words are parted by spaces."""

    def deeds_in(self, clause: str) -> frozenset[str]:
        """The deeds this clause states."""
        return frozenset().union(
            *(
                self.verbs[verb.lower()]
                for start, verb in self._verbs_in(clause)
                if any(frame.fits(clause, start, start + len(verb)) for frame in self.frames)
            )
        )

    def _verbs_in(self, clause: str) -> Iterator[tuple[int, str]]:
        if self.parted:
            words = [*_WORD.finditer(clause)]
            spans = [(word.start(), last.end()) for i, word in enumerate(words) for last in reversed(words[i : i + 2])]
        else:
            spans = [(start, start + size) for start in range(len(clause)) for size in (3, 2, 1)]
        reached = 0
        for start, end in spans:
            if start >= reached and clause[start:end].lower() in self.verbs:
                reached = end
                yield start, clause[start:end]


_WORD = re.compile(r"[A-Za-z]+(?:-[A-Za-z]+)?")


@dataclass(frozen=True, slots=True)
class Language:
    """How a language claims and promises, and what takes a claim back."""

    says_done: tuple[Speech, ...]
    """A clause in which the speaker says to have done it."""
    is_done: tuple[Speech, ...]
    """A clause that says it is done, not by whom: believed to be a claim where it was asked for."""
    is_coming: tuple[Speech, ...]
    """A sentence that says it is being done, or about to be."""
    things: Mapping[str, Wording]
    """What a deed is done to, out there and not in the answer."""
    asked: Mapping[str, Wording]
    """A request for a deed."""
    finished: Wording
    """A whole answer that says no more than that all is done."""
    stalling: Wording
    """A promise that names no deed."""
    at_once: Wording
    clause: Wording
    """What parts a sentence into clauses, each of which is judged by itself."""
    condition: Wording
    """A sentence with this is no claim."""
    taken_back: Wording
    """A clause with this is no claim: a denial, a question, somebody else's words."""
    open_ended: Wording
    """A sentence with this promises nothing: an offer, a condition, a question back."""
    past: Wording
    """A sentence with this speaks of what was done before this request."""
    already: Wording
    not_asked: Wording
    """A request with this asks for words: how, what, why."""
    about_past: Wording
    """A request with this asks what was done before."""
    words_wanted: Wording
    """A request with this asks for a text, in which anybody may say anything."""
    for_keeps: Wording
    """A request with this wants more than a text."""
    nothing_done: str
    only_these: str


def _verbs(table: Mapping[str, str], ending: str = "") -> dict[str, frozenset[str]]:
    """From the verbs of each deed to the deeds of each verb."""
    found: dict[str, set[str]] = {}
    for deed, verbs in table.items():
        for verb in verbs.split(", "):
            found.setdefault(verb + ending, set()).add(deed)
    return {verb: frozenset(deeds) for verb, deeds in found.items()}


def _wordings(**texts: str) -> dict[str, Wording]:
    return {deed: Wording(text) for deed, text in texts.items()}


_FILE = (
    r"[\w~./\\-]*\w\.(?:txt|md|py|json|ya?ml|toml|csv|tsv|js|ts|tsx|jsx|html?|css|sh|log|ini|cfg|conf|xml|sql|pdf|"
    r"docx?|xlsx?|pptx?|png|jpe?g|svg|zip|gz|tar|env|rs|go|java|c|cpp|h|rb|php|ipynb|lock|bak)\b"
    r"|\b(?:README|Makefile|Dockerfile|crontab)\b|(?:^|[\s`(])~?/[\w.-]+/?[\w./-]*"
)

# -- English ------------------------------------------------------------------------------------------------------

_EN_DONE = {
    "write": "created, written, wrote, saved, stored, added, appended, updated, edited, modified, changed, replaced, "
    "generated, made, set up, fixed, recorded, logged, inserted, put, refactored, configured, exported, built, "
    "implemented, overwrote, patched",
    "run": "ran, run, executed, started, launched, installed, built, compiled, deployed, restarted, stopped, killed, "
    "tested, committed, pushed, pulled, cloned, rebooted, upgraded, re-ran, rerun, merged, verified",
    "send": "sent, emailed, e-mailed, notified, messaged, forwarded, posted, texted, published, replied, shared, told, "
    "informed",
    "schedule": "scheduled, set, set up, created, added, booked, arranged, configured",
    "look": "searched, looked up, looked at, looked into, looked through, looked for, googled, browsed, fetched, "
    "downloaded, checked, scanned, read, opened, inspected, examined, reviewed, visited, researched, went through, "
    "gone through, queried",
    "delete": "deleted, removed, moved, renamed, copied, cleaned, cleaned up, cleared, erased, archived, trashed, "
    "emptied, backed up",
    "delegate": "delegated, handed, spawned, started, assigned, dispatched, kicked off, launched",
}
_EN_COMING = {
    "write": "create, write, save, store, add, append, update, edit, modify, change, replace, generate, make, set up, "
    "fix, record, put, refactor, configure, export, build, implement, insert, prepare, patch",
    "run": "run, execute, start, launch, install, build, compile, deploy, restart, stop, kill, test, commit, push, "
    "pull, clone, reboot, upgrade, re-run, merge",
    "send": "send, email, e-mail, notify, message, forward, post, text, publish, reply, tell, share",
    "schedule": "schedule, set, set up, create, add, book, arrange, remind, wake, ping",
    "look": "search, look up, look at, look into, look through, look for, look around, look this, look that, look it, "
    "take a, have a, google, browse, fetch, download, check, scan, read, open, inspect, examine, review, research, "
    "investigate, find out, pull up, gather, query, dig into",
    "delete": "delete, remove, move, rename, copy, clean, clean up, clear, erase, archive, empty, back up",
    "delegate": "delegate, hand, spawn, assign, dispatch, kick off",
}
_EN_GOING = {
    "write": "creat, writ, sav, stor, add, append, updat, edit, modify, chang, replac, generat, mak, fix, refactor, "
    "build, implement, export, patch",
    "run": "runn, execut, start, launch, install, build, compil, deploy, restart, stopp, test, committ, push, pull, "
    "clon, upgrad, merg",
    "send": "send, email, notify, messag, forward, post, text, publish",
    "schedule": "schedul, sett, creat, add, book, arrang",
    "look": "search, brows, fetch, download, check, scann, read, inspect, review, research, investigat, gather",
    "delete": "delet, remov, mov, renam, copy, clean, clear, eras, archiv, empty",
    "delegate": "delegat, spawn, assign, dispatch",
}

_EN_I_DID = (
    r"\b(?:I|we)(?:['’]ve| have)? (?:(?:just|now|already|also|successfully|then|finally|gone ahead and|went ahead and|"
    r"both|all) )*"
)
_EN_I_WILL = (
    r"\b(?:I['’]ll|I will|I shall|I['’]m going to|I am going to|I['’]m about to|let me|allow me to|going to)"
    r"(?: (?:now|just|quickly|first|also|go ahead and|go and|try to|start by|begin by|right now|immediately))* $"
)
_EN_GREETING = r"(?:(?:done|ok|okay|sure|all set|great|perfect|got it|success|yes|alright)\b[\s!.,:–—-]*)?"

_EN_STORED = rf"\b(?:files?|folders?|director(?:y|ies)|disk|workspace|repo(?:sitory)?|on your machine)\b|{_FILE}"
_EN_RUN_THING = (
    r"\b(?:commands?|scripts?|tests?|test suite|code|programs?|build|servers?|services?|containers?|packages?|"
    r"dependenc(?:y|ies)|process(?:es)?|migrations?|benchmarks?|linter|app|application|database|branch|changes|pytest|"
    r"npm|pip|docker|git|repo(?:sitory)?|playbook|pipeline|update|project|gateway)\b|CODE"
)
_EN_DELETE_THING = (
    rf"\b(?:files?|folders?|director(?:y|ies)|trash|cache|downloads|desktop|logs|branch|backups?|reminders?|cron|"
    rf"screenshots|photos|database|mails)\b|{_FILE}"
)

ENGLISH = Language(
    says_done=(
        Speech(
            _verbs(_EN_DONE),
            (
                Frame(Wording(rf"{_EN_I_DID}$")),
                Frame(
                    Wording(rf"{_EN_I_DID}\w+(?:ed|ote|ook|ead|ent|ade|ound)\b[^.;:?]{{0,60}}? and (?:then |also )?$")
                ),
            ),
            parted=True,
        ),
    ),
    is_done=(
        Speech(
            _verbs(_EN_DONE),
            (
                Frame(Wording(r"\b(?:has|have) (?:(?:now|just|already|also|all|both) )*been (?:successfully )?$")),
                Frame(Wording(r"\b(?:was|were|is|are) (?:(?:now|all|already|successfully) )*$")),
                Frame(Wording(rf"^{_EN_GREETING}(?:(?:successfully|just) )?$")),
                Frame(Wording(""), Wording(r"^(?: successfully| now)?[.!✅ ]*$")),
            ),
            parted=True,
        ),
    ),
    is_coming=(
        Speech(_verbs(_EN_COMING), (Frame(Wording(_EN_I_WILL)),), parted=True),
        Speech(
            _verbs(_EN_GOING, "ing"),
            (
                Frame(Wording(r"\b(?:I['’]m|I am) (?:now |currently |just )*$")),
                Frame(Wording(r"^(?:now |ok(?:ay)?,? |sure[,!]? )?$")),
            ),
            parted=True,
        ),
    ),
    things=_wordings(
        write=_EN_STORED,
        run=_EN_RUN_THING,
        send=r"\b(?:e-?mails?|sms|text message|notifications?|telegram|slack|whatsapp|discord|invit(?:e|es|ation|ations)|"
        r"group|channel|team|inbox)\b|\bto (?!you\b|your (?:message|question|request)|above|below|the chat)\w+",
        schedule=r"\b(?:reminders?|alarms?|timers?|cron|cron ?jobs?|(?:daily|weekly|recurring|scheduled) (?:jobs?|tasks?)|"
        r"meetings?|calendar|appointments?|(?:at|for) \d|tomorrow|every (?:day|morning|week|hour|monday|evening))\b",
        look=r"\b(?:web|internet|online|news|websites?|site|web ?pages?|url|https?|google|folders?|director(?:y|ies)|"
        r"workspace|repo(?:sitory)?|code ?base|logs?|weather|forecast|prices?|server|disk|calendar|inbox|the files?|"
        rf"your files?|files? in|documentation|docs|sources)\b|{_FILE}",
        delete=_EN_DELETE_THING,
        delegate=r"\b(?:sub-?agents?|background|workers?)\b",
    ),
    asked=_wordings(
        write=r"\b(?:create|make|write|save|store|add|append|put|update|edit|change|fix|modify|replace|generate|record|"
        r"insert|refactor|set up|build|export|implement|log|patch)\b.{0,80}?(?:\b(?:files?|folders?|"
        r"director(?:y|ies)|script|notes|readme|config(?:uration)?|project|disk|workspace|repo|module|function in|"
        rf"bug in|memory\.md)\b|{_FILE})",
        run=r"\b(?:(?:run (?!me\b|through|by|down)|execute|install|compile|deploy|restart|reboot|upgrade|re-?run|commit|"
        r"push|clone)\b|(?:start|launch|stop|kill|turn off|turn on|pull|test|build|merge)\b.{0,80}?"
        rf"(?:{_EN_RUN_THING}))",
        send=r"\b(?:send|notify|forward|publish|e-?mail (?!to\b)\w+|message (?!to\b)\w+|text (?:my|him|her|\w+ that)|"
        r"post (?:it|this|that|a|the)|tell (?!me)\w+|let (?!me|us)\w+ know|ping|share)\b",
        schedule=r"\b(?:remind(?: me)?\b|schedule|set (?:up )?(?:a|an|my|the)? ?(?:\w+ )?(?:reminder|alarm|timer|job|"
        r"cron|meeting)|wake me|book (?:a|an|me)|add .{0,80}?\b(?:calendar|reminder)|"
        r"every (?:day|morning|evening|hour|week|monday))",
        look=r"\b(?:search|look up|look for|google|find|check|fetch|download|browse|read|open|list|show me|"
        r"what(?:'s| is) in)\b",
        delete=r"\b(?:delete|remove|move|rename|copy|clean(?: up)?|clear|erase|archive|empty|back ?up|trash)\b.{0,80}?"
        rf"(?:{_EN_DELETE_THING})",
        delegate=r"\b(?:spawn|delegate|sub-?agent|in the background)",
    ),
    finished=Wording(
        r"^(?:(?:ok|okay|sure|great|perfect|yes)[\s!.,—-]*)?(?:(?:it|that|this|everything)(?:['’]s| is| has been) )?(?:all )?"
        r"(?:done|set|finished|completed?|taken care of|task completed?)(?: for you| now| successfully)?[\s!.✅👍]*$"
    ),
    stalling=Wording(
        r"\b(?:I['’]ll|I will|I['’]m going to|let me|I shall)(?: (?:now|just|then|right away|immediately))* "
        r"(?:get started|get (?:right )?(?:on|to) (?:it|this|that|work)|start(?: (?:on|with) (?:it|this|that))?"
        r"(?: right away| now| immediately)?|begin(?: now| right away)?|get back to you|report back|be (?:right )?back|"
        r"keep you (?:posted|updated)|let you know (?:when|once|as soon as) (?:it|I|that|this|they|the)|"
        r"update you|work on (?:it|this|that)|handle (?:it|this|that)|take care of (?:it|this|that)|"
        r"do (?:it|that|this)(?: for you)?(?: now| right away| immediately)?|proceed(?: now)?)\b"
        r"|^(?:ok(?:ay)?|sure|got it|alright|great)?[\s,!.—-]*(?:working on it|on it|getting (?:right )?(?:on|to) (?:it|that)|"
        r"(?:just )?(?:one|a) (?:moment|second|sec|minute)|give me (?:a|one|just a|a few) (?:moment|second|sec|minute)s?|"
        r"hang on|hold on|stand by|please (?:wait|hold|stand by)|starting (?:now|right away))\b"
        r"|\b(?:I['’]m|I am) (?:on it|starting (?:now|on (?:it|this|that))|working on (?:it|this|that)|getting started)\b"
    ),
    at_once=Wording(
        r"\b(?:now|right away|immediately|straight away|at once|this instant|right now)\b|^(?:now )?\w+ing\b"
    ),
    clause=Wording(r", but |; "),
    condition=Wording(
        r"\b(?:if|once|when|whenever|after|until|before|unless|whether|suppose|supposing|imagine|assuming|as if|"
        r"as though)\b"
    ),
    taken_back=Wording(
        r"\b(?:would|could|should|might|may|can|cannot|can['’]t|not|never|nothing|none|no|neither|nor|without|wasn['’]t|isn['’]t|"
        r"weren['’]t|haven['’]t|hasn['’]t|didn['’]t|says?|said|means?|shows?|claims?|pretend|make sure|ensure|"
        r"confirm(?:s|ing)? that|tells? you|told me|you(?:['’]ve| have)|like|which|who|mentally|by hand|in my head)\b|\?\s*$"
    ),
    open_ended=Wording(
        r"\b(?:if|unless|until|whether|after you|once you|when(?:ever)? you|as soon as you|once I (?:have|know|get)|"
        r"when I (?:have|know|get)|need|would|could|can|can['’]t|cannot|should|might|not|won['’]t|let me know|please (?:tell|"
        r"share|send|provide|confirm|give|let|paste|upload)|next time|in (?:the )?future|from now on|going forward|"
        r"every time|always|happy to|glad to|like me to|want me to|together|for example|assum\w+|until then|"
        r"say (?:go|yes|the word)|as soon as I|once it|then I['’]ll|step by step|in your|walk you through|explain|how (?:to|it|this|that))\b|\?\s*$"
    ),
    past=Wording(
        r"\b(?:earlier|previously|last (?:time|turn|week|month|session|night|year)|yesterday|the other day|"
        r"(?:a (?:moment|minute|while|few)|\w+ (?:minutes?|hours?|days?|weeks?|months?)) ago|before(?:hand)?|"
        r"in (?:my|the|our) (?:previous|last|earlier|first)|at the (?:start|beginning)|back (?:then|when|in)|"
        r"(?:this|on) (?:morning|monday|tuesday|wednesday|thursday|friday|saturday|sunday))\b"
    ),
    already=Wording(r"\balready\b"),
    not_asked=Wording(
        r"^\W*(?:how|what|why|who|whose|when|where|which|is|are|am|does|do i|do you|do we|did|have|has|had|was|were|"
        r"should|explain|describe|compare|define|tell me|teach|suggest|recommend|list the|give me|i wonder|i(?:['’]m| am) "
        r"(?:curious|wondering)|thanks|thank you|hi|hello|can i|could i|may i|can you (?:explain|tell|describe|teach)|"
        r"could you (?:explain|tell|describe)|walk me|what if|suppose|imagine|best way|difference)\b"
    ),
    about_past=Wording(
        r"\b(?:did (?:you|it|that|they)|have you|had you|has (?:it|the|that)|what (?:did|have) you|when did you|"
        r"where did you|which \w+ did you|you (?:just )?(?:did|made|created|changed|ran|sent|wrote|said|deleted)|"
        r"so far|last time|remember when|recap)\b"
    ),
    words_wanted=Wording(
        r"\b(?:story|poem|essay|letter|translat\w+|role-?play|pretend|act as|you are (?:a|an|now)|dialogue|conversation|"
        r"sentences?|paragraphs?|lyrics|jokes?|captions?|(?<![@.])examples?(?!\.)|sample|template|summari[sz]e|summary|rewrite|rephrase|"
        r"paraphrase|proofread|grammar|cover letter|novel|tweet|speech|slogan|haiku|fiction|scene|monologue|diary|"
        r"blog post|outline|draft|headline|release notes|status update|commit message|changelog entry|reply to (?:this|him|"
        r"her|them|my)|how (?:do|would|should) (?:i|you) say|correct this|polish|write (?:me )?(?:an? )?(?:short |polite |"
        r"formal |friendly )*(?:e-?mail|message|note|reply|text|review))\b|```|\n.*\n.*\n|\[(?:image|file|audio|voice): "
    ),
    for_keeps=Wording(
        rf"\b(?:(?:to|in|as|into|the) (?:a |the |my )?(?:new )?files?|save|store|disk|workspace|send|run|execute|post|remind|"
        rf"schedule)\b|{_FILE}"
    ),
    nothing_done="(No action was executed in this turn.)",
    only_these="(This turn only used {tools}; the action described above was not executed.)",
)

# -- Chinese ------------------------------------------------------------------------------------------------------

_ZH_FOR_YOU = r"(?:[为帮给替](?:你|您|大家|咱们?))"
_ZH_WILL = r"(?:这就|马上|立刻|立即|现在就?|即刻|正在?|来|去|先|会|将|要|准备|接下来|稍后|待会儿?|一会儿?|开始)"
_ZH_NOW = r"(?:现在)?(?:这就|马上|立刻|立即|现在就?|即刻|正在)"
_ZH_FEW = r"[^，。；]{0,24}"

_ZH_VERBS = _verbs({
    "write": "创建, 新建, 建立, 建好, 建, 写入, 写好, 写到, 写进, 写, 保存, 存入, 存到, 存进, 存好, 存, 生成, 修改, 改好, 改成, 改, 更新, "
    "编辑, 添加, 追加, 加入, 加到, 加上, 替换, 记录, 记到, 记入, 导出, 重构, 修复, 配置, 放到, 放进, 放在",
    "run": "运行, 执行, 跑, 启动, 重启, 停止, 停掉, 安装, 部署, 编译, 构建, 测试, 提交, 推送, 拉取, 克隆, 升级, 关闭, 杀掉, 装, 合并, 验证",
    "send": "发送, 发给, 发到, 发出, 发布, 发, 寄, 通知, 转发, 推送, 群发, 告知, 告诉, 回复",
    "schedule": "设置, 设定, 设, 定, 安排, 创建, 添加, 加, 预约, 预订, 提醒, 新建, 建立, 配置",
    "look": "搜索, 搜, 查询, 查找, 查看, 查阅, 查, 检索, 下载, 抓取, 访问, 读取, 阅读, 读, 打开, 检查, 浏览, 看看, 看, 扫描, 调研, 研究, "
    "翻看, 翻",
    "delete": "删除, 删掉, 删, 移除, 清理, 清空, 移动, 移到, 移至, 挪到, 移, 重命名, 改名, 复制, 拷贝, 备份, 归档, 取消",
    "delegate": "委派, 委托, 交给, 派, 分派, 启动, 安排",
})  # fmt: skip

_ZH_STORED = rf"文件夹?|目录|脚本|磁盘|硬盘|工作区|仓库|本地|桌面|{_FILE}"
_ZH_DELETE_THING = rf"文件夹?|目录|回收站|缓存|日志|提醒|任务|截图|照片|备份|下载|桌面|分支|数据库|{_FILE}"

CHINESE = Language(
    says_done=(
        Speech(
            _ZH_VERBS,
            (
                Frame(Wording(rf"我(?:们)?(?:也|都|刚刚?|现在)?(?:已经?|刚刚?|成功|都已|顺利){_ZH_FEW}$")),
                Frame(Wording(rf"(?:已经?|刚刚?|成功)(?:成功|经)?{_ZH_FOR_YOU}{_ZH_FEW}$")),
                Frame(
                    Wording(rf"{_ZH_FOR_YOU}(?:已经?|成功|都)?{_ZH_FEW}$"),
                    Wording(r"^(?:好|完|到|成|掉|过)?(?:了|完成|完毕|成功)"),
                ),
                Frame(
                    Wording(rf"我(?:们)?(?:又|还|也|先|就)?(?:[把将给在用去向]{_ZH_FEW})?$"),
                    Wording(r"^(?:好|完|到|成|掉|过|出|给)?[^，。；的]{0,16}?(?:了|过)"),
                ),
            ),
            parted=False,
        ),
    ),
    is_done=(
        Speech(
            _ZH_VERBS,
            (
                Frame(Wording(rf"(?:已经?|均已|都已|现已|成功){_ZH_FEW}$")),
                Frame(Wording(""), Wording(r"^(?:成功|完成|完毕|完了|好了|好啦|妥当|掉了|完啦)")),
                Frame(Wording(rf"[把将]{_ZH_FEW}$"), Wording(r"^[^，。；]{0,20}?了")),
                Frame(Wording(r"^(?:并且?|同时|也)(?:已经?)?(?:[把将][^，。；]{0,20})?$")),
                Frame(
                    Wording(r"^(?:好的?[，！,! ]*)?$"),
                    Wording(r"^(?:好|到|掉|给)?[^，。；的]{0,20}?了[^，。；]{0,20}$"),
                ),
            ),
            parted=False,
        ),
    ),
    is_coming=(
        Speech(
            _ZH_VERBS,
            (
                Frame(
                    Wording(
                        rf"(?:我(?:们)?(?:就)?{_ZH_WILL}{{1,3}}|(?:^|[，,！! ]){_ZH_NOW})"
                        rf"(?:去|来|就|开始|再)?{_ZH_FOR_YOU}?(?:去|来|把|将)?[^，。；]{{0,14}}$"
                    )
                ),
            ),
            parted=False,
        ),
    ),
    things=_wordings(
        write=_ZH_STORED,
        run=r"命令|脚本|测试|代码|程序|服务|容器|依赖|软件包|进程|构建|项目|数据库|分支|应用|CODE|npm|pip|docker|git|pytest|nginx",
        send=r"邮件|邮箱|短信|通知|微信|钉钉|飞书|群|邀请|telegram|slack|"
        r"(?:给|向|告诉|通知|发到)(?!你|您|我|大家|出|读者)[\w\u4e00-\u9fff]+",
        schedule=r"提醒|闹钟|定时|日程|任务|会议|日历|每天|每周|明天|今晚|\d+ ?点",
        look=r"网上|网络|网页|网站|互联网|新闻|文件夹?|目录|日志|工作区|代码库|官网|链接|天气|磁盘|服务器|仓库|资料|数据|价格|航班|股价|文献|"
        rf"{_FILE}",
        delete=_ZH_DELETE_THING,
        delegate=r"子代理|子任务|后台|子智能体",
    ),
    asked=_wordings(
        write=r"(?:创建|新建|建|写|保存|存|生成|修改|改|更新|编辑|添加|追加|加|替换|记录|记|导出|重构|修复|配置|放|做).{0,80}?"
        rf"(?:文件夹?|目录|脚本|笔记|文档|配置|项目|磁盘|工作区|仓库|本地|桌面|表格|网页|{_FILE})"
        r"|[把将].{0,80}?(?:保存|存到|存进|存成|写入|写进|写到|记到|导出)"
        rf"|(?:文件|配置|{_FILE}).{{0,80}}?(?:改|更新|修改|替换|换成|修复|追加)",
        run=r"运行|执行|跑|启动|重启|停止|停掉|安装|部署|编译|构建|测试|提交|推送|拉取|克隆|升级|关闭|关掉|杀掉|装",
        send=r"发(?:送|给|到|一?封|一?条|个|邮件|短信|消息|布)|通知|转发|告诉(?!我)|回复(?:他|她|客户|老板)|把.{0,80}?发",
        schedule=r"提醒我|定(?:个|一个)?闹钟|设(?:置|定)?.{0,8}(?:提醒|闹钟|定时|任务)|安排.{0,10}(?:会议|日程|任务)|预约|预订|日历|定时|"
        r"每天|每周",
        look=r"搜索|搜|查询|查找|查看|查|检索|下载|抓取|读取|读|打开|检查|浏览|看看|看一下|列出",
        delete=r"(?:删除|删掉|删|移除|清理|清空|移动|移到|挪|重命名|改名|复制|拷贝|备份|归档|取消).{0,80}?"
        rf"(?:{_ZH_DELETE_THING})"
        rf"|[把将].{{0,80}}?(?:{_ZH_DELETE_THING}).{{0,80}}?(?:删|移|挪|重命名|改名|复制|拷贝|备份|归档|清)",
        delegate=r"子代理|子任务|后台|委派|交给",
    ),
    finished=Wording(
        r"^(?:好的?|ok|没问题|是的|嗯)?[，！,!。 ]*(?:都|全部|已经?|任务|现在|一切)?(?:都)?(?:已经?)?"
        r"(?:搞定|完成|办好|办妥|弄好|做好|处理好|处理完|做完|弄完|设好|改好)(?:了|啦)?[！!。✅ ~～]*$"
    ),
    stalling=Wording(
        r"(?:请?稍等|请?稍候|等我一下|等一下我|马上就好|马上(?:去|来)?(?:办|做|处理|开始|弄)|这就(?:去|来)?(?:办|做|处理|开始|弄|安排)|"
        r"正在(?:处理|进行|办理|努力|执行)中?|立即(?:开始|着手|处理)|现在(?:就)?(?:开始|着手|动手|去办|处理)|"
        r"稍后(?:给|向|再|就|会|为)?(?:你|您)?(?:回复|告诉|汇报|反馈|通知|答复|回来)|"
        r"(?:完成|做完|弄好|处理完|有结果|跑完|查完|好了)(?:之?后|了|以后)?(?:我)?(?:就|会|再|第一时间|马上|立刻|立即)*(?:告诉|通知|汇报|向|给|跟|回复|反馈)|"
        r"包在我身上|交给我(?:吧|了|来|就)|我(?:来|去)(?:办|处理|搞定|弄)(?:吧|了|一下)?[。！!，]?$|我(?:这就|马上)(?:开始|着手|动手))"
    ),
    at_once=Wording(r"这就|马上|立刻|立即|现在就|现在(?:开始|去|来|给|为|帮)|正在|即刻|稍后"),
    clause=Wording(r"[，,](?!\d)"),
    condition=Wording(
        r"如果|若|假如|要是|假设|倘若|一旦|只要|除非|直到|(?:之后|以后|后)[，,再就]|当.*时|的时候|[完好]后"
    ),
    taken_back=Wording(
        r"没(?!问题)有?|是否|未|不|无法|无需|别|尚|[吗么呢]?[？?]\s*$|吗|"
        r"可以|能够|应该|可能|也许|大概|需要|请|显示|提示|表示|意味|说明|说|确保|确认|像|好像|仿佛|用来|用于|会被|它|他们?|她|人们|大家|许多|"
        r"(?:函数|方法|指令|模块|类|系统|浏览器|程序|公司|团队|政府|官方|开发者|作者|科学家|[你您])(?:会|已|在|将|把|要|都|的)|大多|"
        r"[你您](?:的|刚|之前|发|给|上传|提供|说|提|已|贴|写)"
    ),
    open_ended=Wording(
        r"如果|若|假如|要是|一旦|只要|等[你您]|(?:告诉|发给|贴给|传给|给)我|等到|请(?:先)?(?:提供|告诉|告知|发|给|确认|说明|补充|选择|把|你|您|回复|贴|上传|允许|问)|"
        r"需要|的话|可以|能够|能帮|能为|想要|要不要|是否|[吗呢][？?。]?\s*$|[？?]\s*$|随时|下次|以后|今后|从现在起|之后我会|[你您]确认|"
        r"确认后|收到后|拿到|不|无法|没|一起|一步步|逐步|解释|介绍|说明|举例|例如|比如|假设|说说|聊聊|讲|回答|分析|总结|翻译|记住|尽力|保持|"
        r"[你您](?:先|可|就|要|来)|我们(?:先|来|再|一)|首先|看看这|看这|看一个|看一下[这例]"
    ),
    past=Wording(
        r"之前|刚才|早些时候|上次|上回|昨[天晚]|先前|前面|上一[轮次步条]|上面|此前|以前|方才|那时|上周|上个?月|前[天几]|今早|早上|最初|一开始|当时|\d+ ?[天小]时?前"
    ),
    already=Wording(r"已经|早就|早已"),
    not_asked=Wording(
        r"怎么|如何|怎样|什么|为啥|为何|是否|哪[个些里种]|多少|解释|介绍|区别|讲讲|说说|聊聊|教我|原理|优缺点|建议|推荐|^谢谢|^你好|是不是|"
        r"(?<!帮我)(?<!一下)(?:吗|么)[？?]?\s*$|^(?:能不能|可以|能)(?!帮|把|给|请|替).*[吗？?]"
    ),
    about_past=Wording(
        r"你(?:刚才?|之前|上次|昨天|早上|前面|已经)|了(?:吗|没有?|么)[？?。]?\s*$|有没有|(?:做|干|改|写|删|跑)了(?:什么|哪些|些什么)|"
        r"(?:完成|处理|进行|进展|做)(?:到哪|得怎么样|如何)|回顾|目前为止|进度|记得"
    ),
    words_wanted=Wording(
        r"故事|诗|作文|翻译|译成|译为|扮演|假装|你现在是|你是一[个名位]|草拟|起草|拟一|例句|造句|改写|润色|台词|小说|笑话|歌词|对话|文案|演讲|"
        r"日记|口号|标题|总结这|概括|缩写|扩写|续写|范文|模板|示例|造.{0,2}句|举例|例子|语法|周报|汇报稿|检讨|情书|祝福语|"
        r"写(?:一|个|段|句|封|篇|首)*(?:封|篇|首|段|句|条|则)(?!.*(?:文件|保存|发送|发给))|怎么说|```|\n.*\n.*\n|\[(?:image|file|audio|voice): "
    ),
    for_keeps=Wording(
        rf"保存|存到|存成|存为|写入|写到|写进|文件[里中夹]|成文件|磁盘|发送|发给|发到|运行|执行|提醒我|定时|{_FILE}"
    ),
    nothing_done="（本轮没有执行任何操作。）",
    only_these="（本轮只用了 {tools}，上面所说的操作并没有执行。）",
)
