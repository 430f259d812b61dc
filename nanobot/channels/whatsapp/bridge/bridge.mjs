// The bridge between nanobot and WhatsApp: Baileys on one side, JSON frames over a WebSocket on 127.0.0.1 on the other.
// The frames are listed in nanobot/channels/whatsapp/bridge.py.
//
// Environment: BRIDGE_TOKEN, BRIDGE_PORT, AUTH_DIR (the keys of the linked device, in Baileys' own file format),
// BRIDGE_STATE (messages that wait, and files), BRIDGE_OWNED (end with stdin), WA_WEBSOCKET_URL (another server).
//
// Exit status 78: somebody has to change something; the last line on stderr says what.

import crypto from 'node:crypto'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { WebSocketServer } from 'ws'
import makeWASocket, {
  BufferJSON,
  DEFAULT_CONNECTION_CONFIG,
  downloadMediaMessage,
  getContentType,
  initAuthCreds,
  jidNormalizedUser,
  makeCacheableSignalKeyStore,
  normalizeMessageContent,
  proto,
} from 'baileys'

const VERSION = 2
const { BRIDGE_TOKEN: TOKEN, AUTH_DIR, BRIDGE_STATE: STATE, BRIDGE_PORT: PORT = '3001' } = process.env
const ENDS = new Map([
  [401, 401],
  [403, 403],
  [405, 405],
  [411, 405],
  [440, 440],
])
const RESTART = 515
const AUTH_MS = 5_000
const ACK_MS = 20_000
const DOWNLOAD_MS = 120_000
const SLOWEST_DOWNLOAD = 128 // bytes per millisecond: a large file on a slow line takes longer
const LONGEST_WAIT_MS = 300_000
const STABLE_MS = 60_000
const KEEP_FILES_MS = 7 * 24 * 3600 * 1000
const MOST_REMEMBERED = 1000
const MOST_LINES = 10_000

function fail(reason) {
  process.stderr.write(`${reason}\n`, () => process.exit(78))
}

// libsignal writes the keys of sessions to the console
for (const name of ['log', 'info', 'warn', 'error']) console[name] = () => {}
const say = text => process.stderr.write(`${text}\n`)

function remember(map, key, value) {
  map.delete(key)
  map.set(key, value)
  if (map.size > MOST_REMEMBERED) map.delete(map.keys().next().value)
}

// One bridge at a time may use the keys: two would make them useless.

function lockFolder(folder) {
  const file = path.join(folder, 'bridge.lock')
  for (let tries = 0; tries < 2; tries++) {
    try {
      fs.writeFileSync(file, JSON.stringify({ pid: process.pid, at: Date.now() }), { flag: 'wx' })
      process.on('exit', () => fs.rmSync(file, { force: true }))
      return true
    } catch (error) {
      if (error.code !== 'EEXIST') throw error
      if (isHeld(file)) return false
      fs.rmSync(file, { force: true })
    }
  }
  return false
}

function isHeld(file) {
  try {
    const { pid, at } = JSON.parse(fs.readFileSync(file, 'utf8'))
    if (pid === process.pid || at < Date.now() - os.uptime() * 1000) return false // in a container, or before a reboot
    process.kill(pid, 0)
    return true
  } catch (error) {
    return error.code === 'EPERM'
  }
}

// The keys: written atomically, the credentials with the former ones beside them.

function writeAtomic(file, data, { sync = true } = {}) {
  const descriptor = fs.openSync(`${file}.tmp`, 'w', 0o600)
  try {
    fs.writeFileSync(descriptor, data)
    if (sync) fs.fsyncSync(descriptor)
  } finally {
    fs.closeSync(descriptor)
  }
  fs.renameSync(`${file}.tmp`, file)
}

function readJson(file) {
  try {
    return JSON.parse(fs.readFileSync(file, 'utf8'), BufferJSON.reviver)
  } catch {
    return null
  }
}

function openAuth(folder) {
  const credsFile = path.join(folder, 'creds.json')
  const formerFile = path.join(folder, 'creds.former.json')
  const fileOf = (type, id) => path.join(folder, `${type}-${id}.json`.replaceAll('/', '__').replaceAll(':', '-'))
  let creds = readJson(credsFile) ?? readJson(formerFile)
  if (!creds?.account) {
    // not linked: keys of a former device are useless
    for (const name of fs.readdirSync(folder)) if (/^(?!creds).*\.json$/.test(name)) fs.rmSync(path.join(folder, name))
    creds = initAuthCreds()
  }
  const keys = {
    get(type, ids) {
      const read = id => readJson(fileOf(type, id))
      const revive = value =>
        value && type === 'app-state-sync-key' ? proto.Message.AppStateSyncKeyData.fromObject(value) : value
      return Object.fromEntries(ids.map(id => [id, revive(read(id))]))
    },
    set(data) {
      for (const [type, values] of Object.entries(data)) {
        for (const [id, value] of Object.entries(values)) {
          const text = JSON.stringify(value, BufferJSON.replacer)
          if (value)
            writeAtomic(fileOf(type, id), text, { sync: type !== 'pre-key' }) // there are hundreds of those
          else fs.rmSync(fileOf(type, id), { force: true })
        }
      }
    },
  }
  return {
    creds,
    keys: makeCacheableSignalKeyStore(keys, quiet),
    save() {
      if (!creds.account) return // not linked yet
      if (fs.existsSync(credsFile)) fs.copyFileSync(credsFile, formerFile)
      writeAtomic(credsFile, JSON.stringify(creds, BufferJSON.replacer))
    },
    forget() {
      fs.rmSync(formerFile, { force: true })
      if (fs.existsSync(credsFile)) fs.renameSync(credsFile, path.join(folder, 'creds.logged-out.json'))
    },
  }
}

// What was received and is not acknowledged, and what was sent: lines of JSON, in a file that is only appended to.

function openStore(file) {
  const pending = new Map() // messages by id
  const sent = new Map() // ids of ours that WhatsApp has taken
  let since = 0 // when the device was linked, in seconds: what is older is history
  for (const line of fs.existsSync(file) ? fs.readFileSync(file, 'utf8').split('\n') : []) {
    try {
      const entry = JSON.parse(line)
      if (entry.message) pending.set(entry.id, { key: entry.key, raw: entry.message })
      if (entry.ack) pending.delete(entry.ack)
      if (entry.sent) remember(sent, entry.sent, true)
      since = entry.since ?? since
    } catch {
      // cut off by a crash
    }
  }
  let log, lines
  const compact = () => {
    const entries = [{ since }, ...[...sent.keys()].map(id => ({ sent: id }))]
    for (const [id, { key, raw }] of pending) entries.push({ id, key, message: raw })
    writeAtomic(file, entries.map(entry => `${JSON.stringify(entry)}\n`).join(''))
    if (log) fs.closeSync(log)
    log = fs.openSync(file, 'a', 0o600)
    lines = 0
  }
  const append = entry => {
    try {
      fs.writeSync(log, `${JSON.stringify(entry)}\n`)
      fs.fsyncSync(log)
      if (++lines > MOST_LINES) compact()
    } catch (error) {
      say(`what was received or sent cannot be written down: ${error.message}`)
    }
  }
  compact()
  return {
    pending,
    sent,
    since: () => since,
    begin() {
      since = Math.floor(Date.now() / 1000)
      append({ since })
    },
    put(message) {
      const entry = {
        key: message.key,
        raw: Buffer.from(proto.WebMessageInfo.encode(message).finish()).toString('base64'),
      }
      pending.set(message.key.id, entry)
      append({ id: message.key.id, key: entry.key, message: entry.raw })
    },
    ack(id) {
      if (pending.delete(id)) append({ ack: id })
    },
    confirm(id) {
      remember(sent, id, true)
      append({ sent: id })
    },
  }
}

// Messages as frames.

const secondsOf = message => Number(message.messageTimestamp ?? 0)

const MEDIA = {
  imageMessage: 'image',
  stickerMessage: 'sticker',
  videoMessage: 'video',
  ptvMessage: 'video',
  audioMessage: 'audio',
  documentMessage: 'document',
}

/** The text and kind of a message's content; null for what is no message: reactions, edits, keys. */
function describe(message) {
  const content = normalizeMessageContent(message)
  const type = getContentType(content)
  const part = type && content[type]
  if (type === 'conversation') return { text: part, part: {} }
  if (type === 'extendedTextMessage') return { text: part.text ?? '', part }
  if (type in MEDIA) return { text: part.caption ?? '', part, kind: MEDIA[type] }
  if (type === 'locationMessage')
    return { text: `[location: ${part.degreesLatitude}, ${part.degreesLongitude} ${part.name ?? ''}]`, part }
  if (type === 'contactMessage') return { text: `[contact: ${part.displayName ?? ''}]\n${part.vcard ?? ''}`, part }
  if (type?.startsWith('pollCreationMessage'))
    return { text: [`[poll: ${part.name}]`, ...part.options.map(one => `- ${one.optionName}`)].join('\n'), part }
  return null
}

async function download(message, { part, kind }) {
  const file = { path: '', kind, mimetype: part.mimetype ?? '', name: part.fileName ?? '', ptt: part.ptt === true }
  const target = path.join(inbox, message.key.id.replaceAll(/[^\w-]/g, '_'))
  try {
    if (!fs.existsSync(target)) {
      const within = DOWNLOAD_MS + (Number(part.fileLength) || 0) / SLOWEST_DOWNLOAD
      const late = new Promise((_, reject) => setTimeout(reject, within, new Error('it took too long')).unref())
      writeAtomic(
        target,
        await Promise.race([
          downloadMediaMessage(message, 'buffer', {}, { logger: quiet, reuploadRequest: sock.updateMediaMessage }),
          late,
        ]),
      )
    }
    file.path = target
  } catch (error) {
    say(`a file could not be downloaded: ${error.message}`)
  }
  return file
}

async function toFrame(message) {
  const { key } = message
  const described = describe(message.message)
  const isGroup = key.remoteJid.endsWith('@g.us')
  const me = ownIds()
  const author = jidNormalizedUser((isGroup ? key.participant : key.fromMe ? sock.user.id : key.remoteJid) ?? '')
  const other = jidNormalizedUser((isGroup ? key.participantAlt : key.fromMe ? sock.user.lid : key.remoteJidAlt) ?? '')
  const lid = [author, other].find(id => id.endsWith('@lid')) ?? ''
  const pn =
    [author, other].find(id => id.endsWith('@s.whatsapp.net')) ??
    jidNormalizedUser((await sock.signalRepository.lidMapping.getPNForLID(lid).catch(() => '')) ?? '')
  const context = described.part.contextInfo ?? {}
  const quoted = context.quotedMessage && describe(context.quotedMessage)
  const quotedBy = jidNormalizedUser(context.participant ?? '')
  return {
    type: 'message',
    id: key.id,
    chat: isGroup ? key.remoteJid : jidNormalizedUser(key.remoteJid),
    sender: author,
    ...(pn && { pn }),
    ...(lid && { lid }),
    pushName: message.pushName ?? '',
    content: described.text,
    timestamp: secondsOf(message),
    isGroup,
    fromMe: key.fromMe === true,
    wasMentioned: [...(context.mentionedJid ?? []).map(jidNormalizedUser), quotedBy].some(id => me.has(id)),
    forwarded: context.isForwarded === true,
    ...(quoted && {
      quoted: { id: context.stanzaId ?? '', sender: quotedBy, text: quoted.text || `[${quoted.kind}]` },
    }),
    ...(described.kind && { media: [await download(message, described)] }),
  }
}

// WhatsApp.

const levels = ['trace', 'debug', 'info', 'warn', 'error', 'fatal']
const quiet = { level: 'silent', child: () => quiet, ...Object.fromEntries(levels.map(level => [level, () => {}])) }
const recent = new Map() // messages of people, to quote and to react to
const outgoing = new Map() // messages of ours, for phones that could not decrypt them
const acks = new Map() // who waits for WhatsApp to take a message, by its id
const groups = new Map() // metadata, which Baileys would ask for at each message
const deliveries = new Map() // the last delivery of each chat
let sock, forgetAuth, store, inbox
let lastQr = ''
let ended = 0
let isOpen = false
let stopping = false
let failures = 0

const ownIds = () => new Set([sock?.user?.id, sock?.user?.lid].filter(Boolean).map(jidNormalizedUser))

function connect() {
  const { creds, keys, save, forget } = openAuth(AUTH_DIR)
  forgetAuth = forget
  sock = makeWASocket({
    auth: { creds, keys },
    logger: quiet,
    waWebSocketUrl: process.env.WA_WEBSOCKET_URL ?? DEFAULT_CONNECTION_CONFIG.waWebSocketUrl,
    browser: ['nanobot', 'Chrome', '1.0'],
    emitOwnEvents: false,
    markOnlineOnConnect: false, // else the phone shows no notifications
    syncFullHistory: false,
    shouldSyncHistoryMessage: () => false,
    shouldIgnoreJid: jid => /@(broadcast|newsletter)$/.test(jid),
    getMessage: async ({ id }) => outgoing.get(id),
    cachedGroupMetadata: async jid => groups.get(jid),
  })
  sock.ev.on('creds.update', change => {
    Object.assign(creds, change)
    save()
  })
  sock.ev.on('messages.upsert', takeMessages)
  sock.ev.on('groups.update', changes => changes.forEach(({ id }) => groups.delete(id)))
  sock.ev.on('group-participants.update', ({ id }) => groups.delete(id))
  sock.ev.on('connection.update', follow)
  sock.ws.on('CB:ack,class:message', ({ attrs }) => acks.get(attrs.id)?.(attrs.error ? Number(attrs.error) : 0))
}

function follow({ connection, lastDisconnect, qr, isNewLogin }) {
  if (isNewLogin) store.begin()
  if (qr) tell({ type: 'qr', qr: (lastQr = qr) })
  if (connection === 'open') {
    isOpen = true
    lastQr = ''
    setTimeout(() => (failures = isOpen ? 0 : failures), STABLE_MS).unref()
    tellStatus()
    for (const id of store.pending.keys()) deliver(id)
  } else if (connection === 'close') {
    const code = lastDisconnect?.error?.output?.statusCode ?? 0
    isOpen = false
    for (const settle of acks.values()) settle(-1)
    if (ENDS.has(code) && !stopping) return end(ENDS.get(code))
    tellStatus()
    const wait = code === RESTART ? 0 : Math.min(LONGEST_WAIT_MS, 1000 * 2 ** failures++) * (0.5 + Math.random() / 2)
    if (wait) say(`not connected to WhatsApp (${code}); trying again in ${Math.ceil(wait / 1000)} s`)
    if (!stopping) setTimeout(connect, wait)
  }
}

/** WhatsApp does not want this device any more: say so, and never connect again. */
function end(code) {
  ended = code
  if (code === 401) forgetAuth()
  say(`WhatsApp ended the session (${code})`)
  tell({ type: 'logged_out', code })
}

function takeMessages({ messages, type }) {
  for (const message of messages) {
    const { id, remoteJid, fromMe } = message.key
    if (!describe(message.message) || store.pending.has(id) || recent.has(id)) continue
    if (fromMe && (store.sent.has(id) || acks.has(id) || !ownIds().has(jidNormalizedUser(remoteJid)))) continue
    if (type !== 'notify' && secondsOf(message) < store.since()) continue
    store.put(message)
    deliver(id)
  }
}

/** Tell of a message, in the order of its chat. */
function deliver(id) {
  const { key, raw } = store.pending.get(id)
  const work = async () => {
    try {
      const message = proto.WebMessageInfo.decode(Buffer.from(raw, 'base64'))
      message.key = key
      remember(recent, id, message)
      if (isOpen && store.pending.has(id)) tell(await toFrame(message))
    } catch (error) {
      say(`a message could not be read: ${error.stack}`)
    }
  }
  const delivery = (deliveries.get(key.remoteJid) ?? Promise.resolve()).then(work)
  deliveries.set(key.remoteJid, delivery)
  delivery.then(() => deliveries.get(key.remoteJid) === delivery && deliveries.delete(key.remoteJid))
}

/** Send a message and wait until WhatsApp has taken it. Returns 0, its error, or -1; throws if it was not sent. */
async function transmit(to, content, options) {
  if (to.endsWith('@g.us') && !groups.has(to)) remember(groups, to, await sock.groupMetadata(to))
  const taken = new Promise(resolve => acks.set(options.messageId, resolve))
  try {
    const message = await sock.sendMessage(to, content, options) // of a file, after its upload
    setTimeout(acks.get(options.messageId), ACK_MS, -1).unref()
    remember(outgoing, options.messageId, message.message)
    return await taken
  } finally {
    acks.delete(options.messageId)
  }
}

function mediaOf({ filePath, mimetype, fileName, caption, ptt }) {
  const file = { url: filePath }
  if (/^image\/(jpeg|png)$/.test(mimetype)) return { image: file, caption }
  if (mimetype === 'video/mp4') return { video: file, caption }
  if (mimetype.startsWith('audio/ogg')) return { audio: file, mimetype: 'audio/ogg; codecs=opus', ptt: ptt !== false }
  return { document: file, mimetype, fileName: fileName ?? path.basename(filePath), caption }
}

async function request(frame) {
  const { type, to, text } = frame
  const id = frame.id ?? `3EB0${crypto.randomBytes(9).toString('hex').toUpperCase()}`
  const isEdit = type === 'edit'
  if (!isEdit && store.sent.has(id)) return { type: 'sent', to, id, messageId: id }
  const failed = (code, error) => ({ type: 'failed', to, id, error, ...(code && { code }) })
  if (!isOpen) return failed(503, 'not connected')
  const contents = {
    send: () => ({ text, linkPreview: null }), // a preview would fetch the link
    send_media: () => mediaOf(frame),
    edit: () => ({ text, linkPreview: null, edit: { remoteJid: to, fromMe: true, id } }),
  }
  try {
    const messageId = isEdit ? `3EB0${crypto.randomBytes(9).toString('hex').toUpperCase()}` : id
    const quoted = recent.get(frame.quoted)
    const code = await transmit(to, contents[type](), { messageId, ...(quoted && { quoted }) })
    if (code < 0) return failed(0, 'no confirmation')
    if (code) return failed(code, 'WhatsApp does not take it')
    if (!isEdit) store.confirm(id)
    return { type: 'sent', to, id, messageId }
  } catch (error) {
    const code = error.output?.statusCode ?? (error.data === 'item-not-found' ? 404 : 500)
    return failed(code === 428 ? 503 : code, error.message)
  }
}

async function perform(client, frame) {
  const { type, to, id } = frame
  switch (type) {
    case 'send':
    case 'send_media':
    case 'edit':
      return client.send(JSON.stringify(await request(frame)))
    case 'ack':
      return store.ack(id)
    case 'react': {
      const key = recent.get(id)?.key ?? {
        remoteJid: to,
        id,
        fromMe: false,
        ...(to.endsWith('@g.us') && { participant: frame.sender }),
      }
      return isOpen && sock.sendMessage(to, { react: { text: frame.emoji, key } })
    }
    case 'typing':
      return isOpen && sock.sendPresenceUpdate(frame.on ? 'composing' : 'paused', to)
    case 'read':
      return isOpen && sock.readMessages(frame.ids.map(one => recent.get(one)?.key ?? { remoteJid: to, id: one }))
    case 'pair':
      return tell({ type: 'code', code: await sock.requestPairingCode(String(frame.phone).replaceAll(/\D/g, '')) })
  }
}

// nanobot.

const clients = new Set()

function tell(frame) {
  for (const client of clients) client.send(JSON.stringify(frame))
}

function tellStatus() {
  const [me, lid] = [sock.user?.id, sock.user?.lid].map(id => id && jidNormalizedUser(id))
  tell({
    type: 'status',
    status: isOpen ? 'connected' : 'disconnected',
    version: VERSION,
    ...(me && { me }),
    ...(lid && { lid }),
  })
}

function isTrusted(frame) {
  const hash = text => crypto.createHash('sha256').update(String(text)).digest()
  return frame.type === 'auth' && crypto.timingSafeEqual(hash(frame.token), hash(TOKEN))
}

function serve(client) {
  const late = setTimeout(() => client.close(4001, 'Auth timeout'), AUTH_MS)
  client.on('error', () => client.terminate())
  client.on('close', () => {
    clearTimeout(late)
    clients.delete(client)
  })
  client.on('message', async data => {
    try {
      const frame = JSON.parse(data)
      if (clients.has(client)) return await perform(client, frame)
      if (!isTrusted(frame)) return client.close(4003, 'Invalid token')
    } catch (error) {
      if (!clients.has(client)) return client.close(4003, 'Invalid token')
      return client.send(JSON.stringify({ type: 'error', error: error.message }))
    }
    clearTimeout(late)
    clients.add(client)
    tellStatus()
    if (ended) tell({ type: 'logged_out', code: ended })
    else if (lastQr) tell({ type: 'qr', qr: lastQr })
    for (const id of store.pending.keys()) deliver(id)
  })
}

function stop() {
  stopping = true
  sock?.end(undefined)
  process.exit(0)
}

function main() {
  process.umask(0o077)
  if (!TOKEN || !AUTH_DIR || !STATE) return fail('BRIDGE_TOKEN, AUTH_DIR and BRIDGE_STATE have to be set')
  fs.mkdirSync(AUTH_DIR, { recursive: true })
  inbox = path.join(STATE, 'inbox')
  fs.mkdirSync(inbox, { recursive: true })
  if (!lockFolder(AUTH_DIR)) return fail(`another bridge uses ${AUTH_DIR}: stop it, or the gateway that runs it, first`)
  for (const name of fs.readdirSync(inbox)) {
    const file = path.join(inbox, name)
    if (fs.statSync(file).mtimeMs < Date.now() - KEEP_FILES_MS) fs.rmSync(file)
  }
  store = openStore(path.join(STATE, 'messages.jsonl'))
  const server = new WebSocketServer({
    host: '127.0.0.1',
    port: Number(PORT),
    maxPayload: 1 << 20,
    verifyClient: ({ req }) => !req.headers.origin,
  })
  server.on('error', error =>
    fail(error.code === 'EADDRINUSE' ? `port ${PORT} is in use by another program` : error.message),
  )
  server.on('connection', serve)
  server.on('listening', () => {
    connect()
    process.stdout.write(`listening on ${server.address().port}\n`)
  })
  process.on('unhandledRejection', error => say(`something in Baileys failed: ${error?.stack ?? error}`))
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, stop)
  if (process.env.BRIDGE_OWNED) process.stdin.resume().on('end', stop).on('error', stop)
}

main()
