"""How English claims that something was done, or is about to be."""

import re

from nanobot.agent.run.claims.words import FILE, Frame, Language, Speech, Wording, deeds_by_verb, wordings

_EN_DONE = {
    "write": "created, written, wrote, saved, stored, added, appended, updated, edited, modified, changed, "
    "replaced, generated, made, set up, fixed, recorded, logged, inserted, put, refactored, configured, exported, "
    "built, implemented, overwrote, patched, opened, set, switched, converted, extracted, formatted, organized, "
    "organised, sorted, corrected, resolved, applied, enabled, disabled, reset, rewrote, rewritten, moved",
    "run": "ran, run, executed, started, launched, installed, built, compiled, deployed, restarted, stopped, "
    "killed, tested, rebuilt, tagged, committed, pushed, pulled, cloned, rebooted, upgraded, re-ran, rerun, merged, "
    "verified, uninstalled, enabled, disabled, migrated, synced, turned on, turned off, zipped, unzipped, "
    "compressed, packed, running, reset",
    "send": "sent, emailed, e-mailed, notified, messaged, forwarded, posted, texted, published, replied, shared, "
    "told, informed, uploaded, submitted, delivered, tweeted",
    "schedule": "scheduled, set, set up, created, added, booked, arranged, configured, reserved, ordered, cancelled",
    "look": "searched, looked up, looked it, looked that, looked this, looked at, looked into, looked through, "
    "looked for, googled, browsed, fetched, downloaded, checked, scanned, read, opened, inspected, examined, "
    "reviewed, visited, researched, went through, gone through, queried",
    "delete": "deleted, removed, moved, renamed, copied, cleaned, cleaned up, cleared, erased, archived, trashed, "
    "emptied, backed up",
    "delegate": "delegated, handed, spawned, started, assigned, dispatched, kicked off, launched",
}
_EN_CHANGED = re.compile(
    r"(?!(?:used|mentioned|listed|included|noticed|assumed|based|explained|described|named|called|marked|"
    r"quoted|looked|checked|wanted|tried|needed|learned|attached|considered|noted|showed|discussed|"
    r"ranked|rated|answered|liked|loved|wondered|asked|covered|finished)$)[a-z]+ed"
)
"""Participles that no table has; their deed is a change, which wants a file."""
_EN_ORDERS = frozenset({"run", "set", "set up", "put", "read", "reset", "running"})
"""At the beginning of a sentence these are no participles."""
_EN_COMING = {
    "write": "create, write, save, store, add, append, update, edit, modify, change, replace, generate, make, "
    "set up, fix, record, put, refactor, configure, export, build, implement, insert, prepare, patch",
    "run": "run, execute, start, launch, install, build, compile, deploy, restart, stop, kill, test, commit, push, "
    "pull, clone, reboot, upgrade, re-run, merge",
    "send": "send, email, e-mail, notify, message, forward, post, text, publish, reply, tell, share",
    "schedule": "schedule, set, set up, create, add, book, arrange, remind, wake, ping",
    "look": "search, look up, look at, look into, look through, look for, look around, look this, look that, "
    "look it, take a, have a, google, browse, fetch, download, check, scan, read, open, inspect, examine, review, "
    "research, investigate, find out, pull up, gather, query, dig into",
    "delete": "delete, remove, move, rename, copy, clean, clean up, clear, erase, archive, empty, back up",
    "delegate": "delegate, hand, spawn, assign, dispatch, kick off",
}
_EN_GOING = {
    "write": "creating, writing, saving, storing, adding, appending, updating, editing, modifying, changing, "
    "replacing, generating, making, fixing, refactoring, building, implementing, exporting, patching",
    "run": "running, executing, starting, launching, installing, building, compiling, deploying, restarting, "
    "stopping, testing, committing, pushing, pulling, cloning, upgrading, merging",
    "send": "sending, emailing, notifying, messaging, forwarding, posting, texting, publishing",
    "schedule": "scheduling, setting, creating, adding, booking, arranging",
    "look": "searching, browsing, fetching, downloading, checking, scanning, reading, inspecting, reviewing, "
    "researching, investigating, gathering",
    "delete": "deleting, removing, moving, renaming, copying, cleaning, clearing, erasing, archiving, emptying",
    "delegate": "delegating, spawning, assigning, dispatching",
}

_EN_I_DID = (
    r"(?:^\W*|[,:;!–—(-]\s*|\b(?:and|so|then|but|yes|ok|okay|sure|done|now|also|finally|great|perfect|"
    r"alright) )(?:I|we)(?:['’]ve| have)? (?:(?:just|now|already|also|successfully|then|finally|gone ahead and|"
    r"went ahead and|both|all) )*"
)
_EN_I_WILL = (
    r"\b(?:I['’]ll|I will|I shall|I['’]m going to|I am going to|I['’]m about to|let me|allow me to|"
    r"going to)(?: (?:now|just|quickly|first|also|go ahead and|go and|try to|start by|begin by|right now|"
    r"immediately))* $"
)
_EN_KNOW = Wording(r"^ (?!me\b|us\b|you\b)[\w ]{1,30}? know\b")
_EN_GREETING = r"(?:(?:done|ok|okay|sure|all set|great|perfect|got it|success|yes|alright)\b[\s!.,:–—-]*)?"

_EN_STORED = (
    r"\b(?:files?|folders?|director(?:y|ies)|disk|workspace|repo(?:sitory)?|on your machine|pull request|"
    rf"merge request)\b|{FILE}"
)
_EN_RUN_THING = (
    r"\b(?:commands?|scripts?|tests?|test suite|code|programs?|build|servers?|services?|containers?|packages?|"
    r"dependenc(?:y|ies)|firewall|vpn|images?|website|daemon|cluster|release|tag|process(?:es)?|migrations?|"
    r"benchmarks?|linter|app|application|database|branch|changes|pytest|npm|pip|docker|git|repo(?:sitory)?|playbook|"
    r"pipeline|update|project|gateway)\b|CODE"
)
_EN_LOOK_THING = (
    r"\b(?:web|internet|online|news|websites?|site|web ?pages?|url|https?|google|folders?|director(?:y|ies)|"
    r"workspace|repo(?:sitory)?|code ?base|logs?|weather|forecast|prices?|server|disk|calendar|inbox|mails?|"
    r"my notes|the files?|"
    rf"your files?|files? in|documentation|docs|sources)\b|{FILE}"
)
_EN_DELETE_THING = (
    rf"\b(?:files?|folders?|director(?:y|ies)|trash|cache|downloads|desktop|logs|branch|backups?|reminders?|cron|"
    rf"screenshots|photos|database|mails)\b|{FILE}"
)

ENGLISH = Language(
    says_done=(
        Speech(
            deeds_by_verb(_EN_DONE),
            (
                Frame(Wording(rf"{_EN_I_DID}$")),
                Frame(
                    Wording(rf"{_EN_I_DID}\w+(?:ed|ote|ook|ead|ent|ade|ound)\b[^.;:?]{{0,60}}? and (?:then |also )?$")
                ),
            ),
            parted=True,
            changes=_EN_CHANGED,
        ),
        Speech({"let": frozenset({"send"})}, (Frame(Wording(rf"{_EN_I_DID}$"), _EN_KNOW),), parted=True),
    ),
    is_done=(
        Speech(
            deeds_by_verb(_EN_DONE),
            (
                Frame(Wording(r"\b(?:has|have) (?:(?:now|just|already|also|all|both) )*been (?:successfully )?$")),
                Frame(Wording(r"\b(?:was|were|is|are) (?:(?:now|all|already|successfully) )*$")),
                Frame(Wording(""), Wording(r"^(?: successfully| now)?[.!✅ ]*$")),
            ),
            parted=True,
        ),
        Speech(
            {verb: deeds for verb, deeds in deeds_by_verb(_EN_DONE).items() if verb not in _EN_ORDERS},
            (Frame(Wording(rf"^\W*{_EN_GREETING}(?:(?:successfully|just) )?$")),),
            parted=True,
        ),
    ),
    is_coming=(
        Speech(deeds_by_verb(_EN_COMING), (Frame(Wording(_EN_I_WILL)),), parted=True),
        Speech(
            deeds_by_verb(_EN_GOING),
            (
                Frame(Wording(r"\b(?:I['’]m|I am) (?:now |currently |just )*$")),
                Frame(Wording(rf"^{_EN_GREETING}(?:now )?$")),
            ),
            parted=True,
        ),
    ),
    things=wordings(
        write=_EN_STORED,
        run=_EN_RUN_THING,
        send=r"\b(?:e-?mails?|sms|text message|notifications?|telegram|slack|whatsapp|discord|invit(?:e|es|ation|"
        r"ations)|group|channel|team|inbox)\b|\bto (?!you\b|your (?:message|question|request)|above|below|"
        r"the chat)\w+",
        schedule=r"\b(?:reminders?|alarms?|timers?|cron|cron ?jobs?|(?:daily|weekly|recurring|scheduled) (?:jobs?|"
        r"tasks?)|meetings?|calendar|appointments?|(?:at|for) \d|at (?:noon|midnight)|tonight|tomorrow|every (?:day|"
        r"morning|week|hour|monday|evening))\b",
        look=_EN_LOOK_THING,
        delete=_EN_DELETE_THING,
        change=FILE,
        delegate=r"\b(?:sub-?agents?|background|workers?)\b",
    ),
    asked=wordings(
        write=r"\bopen (?:a|an) (?:pull request|merge request|pr|issue|ticket)|\b(?:create|make|write|rewrite|"
        r"convert|extract|format|organi[sz]e|sort|enable|disable|set|switch|save|store|add|append|put|update|edit|"
        r"change|fix|modify|replace|generate|record|insert|refactor|set up|build|export|implement|log|"
        r"patch)\b.{0,80}?(?:\b(?:files?|folders?|director(?:y|ies)|script|(?:my|the|your) notes|readme|"
        r"config(?:uration)?|project(?! (?:plan|proposal|idea|name))|disk|workspace|repo|module|branch|tag|"
        r"function in|"
        rf"bug in|memory\.md)\b|{FILE})",
        run=r"\b(?:(?:run (?!me\b|through|by|down)|execute|(?:un)?install|compile|deploy|restart|reboot|upgrade|"
        r"migrate|re-?run|commit|push|clone|(?:un)?zip|compress)\b|(?:start|launch|stop|kill|turn off|turn on|"
        r"enable|disable|sync|pull|test|try|build|rebuild|merge|tag)\b.{0,80}?"
        rf"(?:{_EN_RUN_THING}))",
        send=r"\b(?:send|notify|alert (?!me)|inform|forward|publish|e-?mail (?!to\b)\w+|message (?!to\b)\w+|"
        r"text (?:my|him|her|\w+ that)|post (?:it|this|that|a|the|QUOTE)|upload|submit|tell (?!me)\w+|let (?!me|"
        r"us)\w+ know|ping|share)\b",
        schedule=r"\b(?:remind(?: me)?\b|schedule|set (?:up )?(?:a|an|my|the)? ?(?:\w+ )?(?:reminder|alarm|timer|"
        r"job|cron|meeting)|wake me|(?:book|reserve|order|cancel) (?:a|an|me|the|my)|(?:add|"
        r"put) .{0,80}?\b(?:calendar|reminder)|every (?:day|morning|evening|hour|week|monday).{0,60}?\b(?:send|tell|"
        r"give|check|run|notify|post|ping)|(?:send|tell|give|check|run|notify|post|ping)\b.{0,60}?every (?:day|"
        r"morning|evening|hour|week|monday))",
        look=r"\b(?:(?:search|look up|google|download|fetch|browse|dig into|look into)\b|(?:find|check|read|open|list|"
        rf"show me|look (?:at|through|for)|what(?:'s| is) in)\b.{{0,80}}?(?:{_EN_LOOK_THING}))",
        delete=r"\b(?:delete|remove|move|rename|copy|clean(?: up)?|clear|erase|archive|empty|back ?up|"
        r"trash)\b.{0,80}?"
        rf"(?:{_EN_DELETE_THING})",
        delegate=r"\b(?:spawn|delegate|sub-?agent|in the background)",
    ),
    finished=Wording(
        r"^(?:(?:ok|okay|sure|great|perfect|yes)[\s!.,—-]*)?(?:(?:it|that|this|everything)(?:['’]s| is|"
        r" has been) )?(?:all )?(?:done|set|finished|completed?|taken care of|task completed?)(?: for you| now|"
        r" successfully)?[\s!.✅👍]*$"
    ),
    stalling=Wording(
        r"\b(?:I['’]ll|I will|I['’]m going to|let me|I shall)(?: (?:now|just|then|right away|"
        r"immediately))* (?:get started|get (?:right )?(?:on|to) (?:it|this|that|work)|start(?: (?:on|with) (?:it|"
        r"this|that))?(?: right away| now| immediately)?|begin(?: now| right away)?|get back to you|report back|"
        r"be (?:right )?back|keep you (?:posted|updated)|let you know (?:when|once|as soon as) (?:it|I|that|this|"
        r"they|the)|update you|work on (?:it|this|that)|handle (?:it|this|that)|take care of (?:it|this|that)|"
        r"do (?:it|that|this)(?: for you)?(?: now| right away| immediately)?|proceed(?: now)?)\b|^(?:ok(?:ay)?|sure|"
        r"got it|alright|great)?[\s,!.—-]*(?:working on it|on it|getting (?:right )?(?:on|to) (?:it|that)|"
        r"(?:just )?(?:one|a) (?:moment|second|sec|minute)|give me (?:a|one|just a|a few) (?:moment|second|sec|"
        r"minute)s?|hang on|hold on|stand by|please (?:wait|hold|stand by)|starting (?:now|right away))\b|"
        r"\b(?:I['’]m|I am) (?:on it|starting (?:now|on (?:it|this|that))|working on (?:it|this|that)|"
        r"getting started)\b"
    ),
    at_once=Wording(
        r"\b(?:now|right away|immediately|straight away|at once|this instant|right now)\b|^(?:now )?\w+ing\b"
    ),
    clause=Wording(r", |; "),
    condition=Wording(
        r"\b(?:if|once|when|whenever|after|until|before|unless|whether|suppose|supposing|imagine|assuming|as if|"
        r"as though)\b"
    ),
    taken_back=Wording(
        r"\b(?:would|could|should|might|(?<!\d )may(?! \d)|can|cannot|can['’]t|not|never|nothing|none|no|neither|"
        r"nor|(?:was|is|were|have|has|did)n['’]t|says?|said|means?|shows?|claims?|pretend|make sure|ensure|"
        r"confirm(?:s|ing)? that|tells? you|told me|you(?:['’]ve| have)|like|which|who|mentally|by hand|"
        r"in my head)\b|\?\s*$"
    ),
    open_ended=Wording(
        r"\b(?:if|unless|until|whether|after you|once you|when(?:ever)? you|as soon as you|once I (?:have|know|get)|"
        r"when I (?:have|know|get)|need|would|could|can|can['’]t|cannot|should|might|not|won['’]t|let me know|"
        r"please (?:tell|share|send|provide|confirm|give|let|paste|upload)|next time|in (?:the )?future|from now on|"
        r"going forward|every time|always|happy to|glad to|like me to|want me to|together|for example|assume[sd]?|"
        r"assuming|until then|say (?:go|yes|the word)|as soon as I|once it|then I['’]ll|step by step|in your|"
        r"walk you through|explain|how (?:to|it|this|that))\b|\?\s*$|^(?:send|give|tell|show|paste|share|name|"
        r"upload)\b"
    ),
    past=Wording(
        r"\b(?:earlier|previously|last (?:time|turn|week|month|session|night|year)|yesterday|the other day|"
        r"(?:a (?:moment|minute|while|few)|\w+ (?:minutes?|hours?|days?|weeks?|months?)) ago|before(?:hand)?|"
        r"in (?:my|the|our) (?:previous|last|earlier|first)|at the (?:start|beginning)|back (?:then|when|in)|"
        r"(?:this|on) (?:morning|monday|tuesday|wednesday|thursday|friday|saturday|sunday))\b"
    ),
    already=Wording(r"\balready\b"),
    not_asked=Wording(
        r"^\W*(?:i(?:['’]m| am| just| already| have|['’]ve| will|['’]ll| was| did)|how|what|why|who|whose|when|"
        r"where|which|is|are|am|does|do i|do you|do we|did|have|has|had|was|were|should|explain|describe|compare|"
        r"define|tell me|teach|suggest|recommend|list the|give me|i wonder|i(?:['’]m| am) (?:curious|wondering)|"
        r"thanks|thank you|hi|hello|can i|could i|may i|can you (?:explain|tell|describe|teach)|"
        r"could you (?:explain|tell|describe)|walk me|what if|suppose|imagine|best way|difference)\b"
    ),
    would=Wording(
        r"\b(?:what|how|when|where|why|if)\b.{0,60}\bwould\b|\bwould you (?:have|ever)|your plan|(?:how|what) will you"
    ),
    about_past=Wording(
        r"\bhow(?:['’]s| is)\b.{0,40}\bgoing\b|^is (?:the|my|it|that)\b.{0,40}\b(?:done|ready|finished|still|set)\b|"
        r"\b(?:did (?:you|it|that|they)|have you|had you|has (?:it|the|that)|what (?:did|have) you|when did you|"
        r"where did you|which \w+ did you|you (?:just )?(?:did|made|created|changed|ran|sent|wrote|said|deleted)|"
        r"so far|last time|remember when|recap)\b"
    ),
    words_wanted=Wording(
        r"\b(?:story|poem|essay|letter|translat\w+|role-?play|pretend|act as|you are (?:a|an|now)|dialogue|"
        r"conversation|sentences?|paragraphs?|lyrics|jokes?|captions?|(?<![@.])examples?(?!\.)|sample|template|"
        r"summari[sz]e|summary|rewrite|rephrase|paraphrase|proofread|grammar|cover letter|novel|tweet|speech|slogan|"
        r"haiku|fiction|scene|monologue|diary|blog post|outline|draft|headline|release notes|status update|"
        r"commit message|changelog entry|reply to (?:this|him|her|them|my)|how (?:do|would|should) (?:i|you) say|"
        r"correct this|polish|write (?:me )?(?:an? )?(?:short |polite |formal |friendly )*(?:e-?mail|message|note|"
        r"reply|text|review))\b|```|\n.*\n.*\n|\[(?:image|file|audio|voice): "
    ),
    for_keeps=Wording(
        rf"\b(?:(?:to|in|as|into|the) (?:a |the |my )?(?:new )?files?|save|store|disk|workspace|send|run|execute|"
        rf"post|remind|schedule|sub-?agent|background|e-?mail (?:it|this|that|the|my))\b|{FILE}"
    ),
    nothing_done="(No action was executed in this turn.)",
    only_these="(This turn only used {tools}; the action described above was not executed.)",
)
