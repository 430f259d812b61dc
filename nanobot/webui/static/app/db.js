/** What this browser keeps: messages on their way, and drafts. In memory where it may store nothing. */

const memory = { outbox: new Map(), drafts: new Map() };
const KEYS = { outbox: "id", drafts: "session" };

const database = new Promise((resolve) => {
  const opening = indexedDB.open("nanobot", 1);
  opening.onupgradeneeded = () => {
    for (const [store, keyPath] of Object.entries(KEYS)) opening.result.createObjectStore(store, { keyPath });
  };
  opening.onsuccess = () => resolve(opening.result);
  opening.onerror = () => resolve(null);
});

async function run(store, mode, act, instead) {
  const opened = await database;
  if (opened === null) return instead(memory[store]);
  return new Promise((resolve, reject) => {
    const transaction = opened.transaction(store, mode, { durability: "strict" });
    const asked = act(transaction.objectStore(store));
    transaction.oncomplete = () => resolve(asked.result);
    transaction.onabort = () => reject(transaction.error);
  });
}

export const put = (store, value) =>
  run(store, "readwrite", (rows) => rows.put(value), (map) => void map.set(value[KEYS[store]], value));
export const remove = (store, key) =>
  run(store, "readwrite", (rows) => rows.delete(key), (map) => void map.delete(key));
export const getOne = (store, key) => run(store, "readonly", (rows) => rows.get(key), (map) => map.get(key));
export const getAll = (store) => run(store, "readonly", (rows) => rows.getAll(), (map) => [...map.values()]);
