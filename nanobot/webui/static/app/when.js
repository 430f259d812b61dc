/**
 * When a job runs, from a person's words: "every 30 minutes", "every weekday at 7", "每天 18:00", a cron expression.
 * What is none of these is a time, such as "tomorrow 9am", which the gateway reads.
 */
const UNIT_S = { minute: 60, min: 60, hour: 3600, hr: 3600, h: 3600, day: 86_400, "分钟": 60, "小时": 3600, "天": 86_400 };
const DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const CHINESE_DAYS = "日一二三四五六";

/** The fields of a new job that say when: one of `every_s`, `cron` and `at`. */
export function parseWhen(text) {
  const words = text.trim().toLowerCase().replace(/\s+/g, " ");
  const interval = /^(?:every|每隔?) ?(\d+) ?(minutes?|mins?|hours?|hrs?|h|days?|分钟|个?小时|天)$/.exec(words);
  if (interval) return { every_s: Number(interval[1]) * UNIT_S[interval[2].replace(/^个/, "").replace(/(?<=..)s$/, "")] };
  if (/^every hour$|^每小时$/.test(words)) return { cron: "0 * * * *" };
  const regular = /^(?:every ([a-z, ]+?)|(daily)|每(天|日|个?工作日|(?:周|星期)[一二三四五六日天]))(?: ?(?:at |@ ?)?(\d{1,2})(?:[:：](\d{2}))? ?(am|pm)?)?$/.exec(words);
  const days = regular && daysOf(regular[1] ?? regular[2] ?? regular[3]);
  if (days) {
    const hour = (Number(regular[4] ?? 9) % (regular[6] ? 12 : 24)) + (regular[6] === "pm" ? 12 : 0);
    return { cron: `${Number(regular[5] ?? 0)} ${hour} * * ${days}` };
  }
  return words.split(" ").length === 5 && /^[\d*]/.test(words) ? { cron: text.trim() } : { at: text.trim() };
}

/** Days of the week as cron writes them; undefined if the words name none. */
function daysOf(words) {
  if (/^(day|daily|天|日)$/.test(words)) return "*";
  if (/^(weekday|workday|个?工作日)s?$/.test(words)) return "1-5";
  if (words === "weekend") return "0,6";
  const chinese = /^(?:周|星期)(.)$/.exec(words);
  if (chinese) return String(Math.max(CHINESE_DAYS.indexOf(chinese[1]), 0));
  const numbers = words.split(/,| and | /).filter(Boolean).map((word) => (word.length >= 3 ? DAYS.indexOf(word.slice(0, 3)) : -1));
  return numbers.length && !numbers.includes(-1) ? numbers.join(",") : undefined;
}
