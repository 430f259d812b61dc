/** Dates, durations, sizes and money in the reader's language. */
import { language, t } from "./words.js";

const DAY_MS = 86_400_000;

function formatter(options) {
  let made = null; // the language is known only once the words are loaded
  return (date) => (made ??= new Intl.DateTimeFormat(language, options)).format(date);
}

const weekday = formatter({ weekday: "long" });
const day = formatter({ month: "long", day: "numeric" });
const dayAndYear = formatter({ year: "numeric", month: "long", day: "numeric" });
export const shortDay = formatter({ month: "short", day: "numeric" });
export const time = formatter({ hour: "2-digit", minute: "2-digit" });

function daysAgo(date) {
  const today = new Date().setHours(0, 0, 0, 0);
  return Math.round((today - new Date(date).setHours(0, 0, 0, 0)) / DAY_MS);
}

/** The day of a separator between messages. */
export function dayName(date) {
  const ago = daysAgo(date);
  if (ago === 0) return t("today");
  if (ago === 1) return t("yesterday");
  if (ago > 1 && ago < 7) return weekday(date);
  return date.getFullYear() === new Date().getFullYear() ? day(date) : dayAndYear(date);
}

/** When a session was last used, in few characters. */
export function shortTime(date) {
  return daysAgo(date) === 0 ? time(date) : shortDay(date);
}

export function seconds(value) {
  if (value < 10) return t("seconds", { n: value.toFixed(1) });
  if (value < 60) return t("seconds", { n: Math.round(value) });
  return t("minutes", { n: Math.floor(value / 60), s: Math.round(value % 60) });
}

export function size(bytes) {
  const units = ["B", "KB", "MB", "GB"];
  const power = bytes > 0 ? Math.min(Math.floor(Math.log10(bytes) / 3), 3) : 0;
  const value = bytes / 1000 ** power;
  return `${power && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[power]}`;
}

export function dollars(value) {
  return value < 0.01 ? `$${value.toPrecision(2)}` : `$${value.toFixed(2)}`;
}

export function tokens(count) {
  return new Intl.NumberFormat(language, { notation: "compact", maximumFractionDigits: 1 }).format(count);
}

/** A day and a time of day, in few characters. */
export function moment(date) {
  return daysAgo(date) === 0 ? `${t("today")}, ${time(date)}` : `${shortDay(date)}, ${time(date)}`;
}

/** A long duration by its largest unit. */
export function duration(value) {
  if (value < 60) return t("seconds", { n: Math.round(value) });
  if (value < 3600) return t("only_minutes", { n: Math.round(value / 60) });
  return value < 2 * 86_400 ? t("hours", { n: Math.round(value / 3600) }) : t("days", { n: Math.round(value / 86_400) });
}

export const monthName = formatter({ month: "long", year: "numeric" });

/** The days of the week, from Monday on. */
export function weekdayNames() {
  const name = new Intl.DateTimeFormat(language, { weekday: "short" });
  return Array.from({ length: 7 }, (_, day) => name.format(new Date(2024, 0, day + 1))); // a Monday
}
