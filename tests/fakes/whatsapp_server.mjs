// A WhatsApp on loopback, for a real Baileys: Noise, linking by QR code, and Signal-encrypted messages, also in a group. Written
// from the client's source (Baileys 7.0.0-rc14), with its own primitives; never compared with the live service.
//
// node whatsapp_server.mjs BRIDGE_FOLDER KEYS_FILE. KEYS_FILE remembers what keys the device has uploaded. It says on
// stdout, as lines of JSON, what happens, and does what lines on stdin say: see `commands`.

import fs from 'node:fs'
import path from 'node:path'
import readline from 'node:readline'
import { pathToFileURL } from 'node:url'

const [, , BRIDGE_FOLDER, KEYS_FILE] = process.argv
const modules = path.join(BRIDGE_FOLDER, 'node_modules')
const load = name => import(pathToFileURL(path.join(modules, name)))
const baileys = await load('baileys/lib/index.js')
const { WebSocketServer } = await load('ws/wrapper.mjs')
const { ROOT } = await import('./whatsapp_root.mjs')
const {
  addTransactionCapability,
  aesDecryptGCM,
  aesEncryptGCM,
  Curve,
  decodeBinaryNode,
  encodeBinaryNode,
  encodeBigEndian,
  generateSignalPubKey,
  getBinaryNodeChild,
  getBinaryNodeChildBuffer,
  getBinaryNodeChildren,
  getBinaryNodeChildUInt,
  hkdf,
  hmacSign,
  initAuthCreds,
  jidDecode,
  makeLibSignalRepository,
  proto,
  sha256,
  signedKeyPair,
  encodeWAMessage,
  unpadRandomMax16,
} = { ...baileys, ...(await load('baileys/lib/Signal/libsignal.js')) }

const ME = '4930123456',
  ME_LID = '111222333',
  DEVICE = 7
const SERVER = 's.whatsapp.net'
const HALL = '120363000000000001@g.us'
const quiet = { level: 'silent', child: () => quiet, trace() {}, debug() {}, info() {}, warn() {}, error() {} }
const emit = event => process.stdout.write(`${JSON.stringify(event)}\n`)
for (const name of ['log', 'info', 'warn', 'error']) console[name] = () => {} // libsignal's
let ids = 0

// People, each with a phone.

const people = new Map()

function person(number, lid) {
  const data = new Map()
  const store = {
    get: (type, names) =>
      Object.fromEntries(names.map(name => [name, data.get(`${type}-${name}`)]).filter(([, value]) => value)),
    set: values => {
      for (const [type, entries] of Object.entries(values))
        for (const [name, value] of Object.entries(entries)) data.set(`${type}-${name}`, value)
    },
  }
  const creds = initAuthCreds()
  const keys = addTransactionCapability(store, quiet, { maxCommitRetries: 3, delayBetweenTriesMs: 10 })
  const signal = makeLibSignalRepository({ creds, keys }, quiet, async () => [])
  const one = { number, lid, creds, store, signal, knows: false }
  people.set(number, one).set(lid, one)
}

person(ME, ME_LID)
person('4915112345678', '272700845121588')

/** A person's keys, as the server gives them to whoever writes to them: one of them is used once. */
function bundle(jid) {
  const { creds, store } = people.get(jidDecode(jid).user)
  const preKey = Curve.generateKeyPair(),
    preKeyId = ++ids
  store.set({ 'pre-key': { [preKeyId]: preKey } })
  const key = (tag, id, pair, signature) => ({
    tag,
    attrs: {},
    content: [
      { tag: 'id', attrs: {}, content: encodeBigEndian(id, 3) },
      { tag: 'value', attrs: {}, content: pair.public },
      ...(signature ? [{ tag: 'signature', attrs: {}, content: signature }] : []),
    ],
  })
  return {
    tag: 'user',
    attrs: { jid },
    content: [
      { tag: 'registration', attrs: {}, content: encodeBigEndian(creds.registrationId) },
      { tag: 'type', attrs: {}, content: Buffer.from([5]) },
      { tag: 'identity', attrs: {}, content: creds.signedIdentityKey.public },
      key('skey', creds.signedPreKey.keyId, creds.signedPreKey.keyPair, creds.signedPreKey.signature),
      key('key', preKeyId, preKey),
    ],
  }
}

// A connection.

class Line {
  constructor(socket) {
    this.socket = socket
    this.bytes = Buffer.alloc(0)
    this.hash = this.salt = this.key = Buffer.from('Noise_XX_25519_AESGCM_SHA256\0\0\0\0')
    this.counter = this.reads = this.writes = 0
    this.ephemeral = Curve.generateKeyPair()
    this.step = this.hello
    this.work = Promise.resolve()
    this.began = false
  }

  receive(data) {
    this.bytes = Buffer.concat([this.bytes, data])
    if (!this.began) {
      this.mix(this.bytes.subarray(0, 4))
      this.bytes = this.bytes.subarray(4)
      this.began = true
    }
    while (this.bytes.length >= 3) {
      const size = this.bytes.readUIntBE(0, 3)
      if (this.bytes.length < size + 3) return
      const frame = this.bytes.subarray(3, size + 3)
      this.bytes = this.bytes.subarray(size + 3)
      this.work = this.work.then(() => this.step(frame)).catch(error => emit({ error: error.stack }))
    }
  }

  sendRaw(data) {
    const size = Buffer.alloc(3)
    size.writeUIntBE(data.length, 0, 3)
    this.socket.send(Buffer.concat([size, data]))
  }

  // Noise, as the one who is called

  mix(data) {
    this.hash = sha256(Buffer.concat([this.hash, data]))
  }
  nonce(counter) {
    const iv = Buffer.alloc(12)
    iv.writeUInt32BE(counter, 8)
    return iv
  }
  derive(data) {
    const key = hkdf(data, 64, { salt: this.salt, info: '' })
    return [key.subarray(0, 32), key.subarray(32)]
  }
  mixKey(data) {
    ;[this.salt, this.key] = this.derive(Buffer.from(data))
    this.counter = 0
  }
  seal(text) {
    const sealed = aesEncryptGCM(text, this.key, this.nonce(this.counter++), this.hash)
    this.mix(sealed)
    return sealed
  }
  open(sealed) {
    const text = aesDecryptGCM(sealed, this.key, this.nonce(this.counter++), this.hash)
    this.mix(sealed)
    return text
  }

  hello(frame) {
    const theirs = proto.HandshakeMessage.decode(frame).clientHello.ephemeral
    const own = Curve.generateKeyPair(),
      issuer = Curve.generateKeyPair()
    const { Details } = proto.CertChain.NoiseCertificate
    const intermediate = Details.encode({ serial: 1, issuerSerial: 0, key: issuer.public }).finish()
    const leaf = Details.encode({ serial: 2, issuerSerial: 1, key: own.public }).finish()
    const chain = proto.CertChain.encode({
      leaf: { details: leaf, signature: Curve.sign(issuer.private, leaf) },
      intermediate: { details: intermediate, signature: Curve.sign(ROOT.private, intermediate) },
    }).finish()
    this.mix(theirs)
    this.mix(this.ephemeral.public)
    this.mixKey(Curve.sharedKey(this.ephemeral.private, theirs))
    const sealed = this.seal(own.public)
    this.mixKey(Curve.sharedKey(own.private, theirs))
    const serverHello = { ephemeral: this.ephemeral.public, static: sealed, payload: this.seal(chain) }
    this.sendRaw(Buffer.from(proto.HandshakeMessage.encode({ serverHello }).finish()))
    this.step = this.finish
  }

  finish(frame) {
    const { static: sealed, payload } = proto.HandshakeMessage.decode(frame).clientFinish
    this.mixKey(Curve.sharedKey(this.ephemeral.private, this.open(sealed)))
    const hello = proto.ClientPayload.decode(this.open(payload))
    ;[this.readKey, this.writeKey] = this.derive(Buffer.alloc(0))
    this.step = this.stanza
    if (hello.devicePairingData) {
      this.identity = hello.devicePairingData.eIdent
      const refs = [1, 2].map(number => ({ tag: 'ref', attrs: {}, content: Buffer.from(`2@ref${number}`) }))
      this.send({
        tag: 'iq',
        attrs: { id: `pair-${++ids}`, type: 'set', from: SERVER, xmlns: 'md' },
        content: [{ tag: 'pair-device', attrs: {}, content: refs }],
      })
      return emit({ event: 'new' })
    }
    linked = this
    emit({ event: 'login', user: Number(hello.username), device: hello.device })
    this.send({ tag: 'success', attrs: { t: now(), lid: `${ME_LID}:${DEVICE}@lid` } })
  }

  send(node) {
    this.sendRaw(aesEncryptGCM(encodeBinaryNode(node), this.writeKey, this.nonce(this.writes++), Buffer.alloc(0)))
  }

  // stanzas

  async stanza(frame) {
    const node = await decodeBinaryNode(aesDecryptGCM(frame, this.readKey, this.nonce(this.reads++), Buffer.alloc(0)))
    if (node.tag === 'iq' && node.attrs.type === 'result') {
      if (getBinaryNodeChild(node, 'pair-device-sign')) {
        emit({ event: 'linked' })
        this.end('515')
      }
    } else if (node.tag === 'iq') {
      this.send({
        tag: 'iq',
        attrs: { id: node.attrs.id, type: 'result', from: SERVER },
        content: await this.answer(node),
      })
      if (node.attrs.xmlns === 'passive')
        for (const stanza of [...waiting.splice(0), offlineEnd()]) await this.deliver(stanza)
    } else if (node.tag === 'message') {
      await this.take(node)
    } else if (node.tag === 'receipt') {
      emit({ event: 'receipt', id: node.attrs.id, type: node.attrs.type ?? '' })
      this.send({ tag: 'ack', attrs: { id: node.attrs.id, class: 'receipt', from: node.attrs.to } })
    } else if (node.tag === 'chatstate') {
      emit({ event: 'typing', to: node.attrs.to })
    }
  }

  async answer(node) {
    const [child] = Array.isArray(node.content) ? node.content : []
    if (node.attrs.xmlns === 'encrypt' && child?.tag === 'count')
      return [{ tag: 'count', attrs: { value: uploaded ? '500' : '0' } }]
    if (node.attrs.xmlns === 'encrypt' && child?.tag === 'key') {
      return [
        { tag: 'list', attrs: {}, content: getBinaryNodeChildren(child, 'user').map(({ attrs }) => bundle(attrs.jid)) },
      ]
    }
    if (node.attrs.xmlns === 'encrypt' && node.attrs.type === 'set' && getBinaryNodeChild(node, 'list')) {
      uploaded = node
      fs.writeFileSync(KEYS_FILE, encodeBinaryNode(node))
    }
    if (node.attrs.xmlns === 'w:g2' && node.attrs.to === HALL) {
      const members = [...new Set([...people.values()].map(({ number }) => number))]
      const participants = members.map(number => ({ tag: 'participant', attrs: { jid: `${number}@${SERVER}` } }))
      const attrs = { id: HALL.split('@')[0], subject: 'Hall', creation: '1', s_t: '1', addressing_mode: 'pn' }
      return [{ tag: 'group', attrs, content: participants }]
    }
    if (node.attrs.xmlns === 'encrypt' && child?.tag === 'digest') return [{ tag: 'digest', attrs: {} }]
    if (node.attrs.xmlns === 'usync') {
      const users = getBinaryNodeChildren(getBinaryNodeChild(child, 'list'), 'user')
      const list = users.map(({ attrs }) => {
        const { lid } = people.get(jidDecode(attrs.jid).user)
        const devices = [{ tag: 'device', attrs: { id: '0' } }]
        return {
          tag: 'user',
          attrs: { jid: attrs.jid },
          content: [
            { tag: 'devices', attrs: {}, content: [{ tag: 'device-list', attrs: {}, content: devices }] },
            { tag: 'lid', attrs: { val: `${lid}@lid` } },
          ],
        }
      })
      return [
        {
          tag: 'usync',
          attrs: {},
          content: [
            { tag: 'result', attrs: {} },
            { tag: 'list', attrs: {}, content: list },
          ],
        },
      ]
    }
    return []
  }

  /** A message of the linked device: decrypted on the phones that it is for. */
  async take(node) {
    const participants = getBinaryNodeChild(node, 'participants')
    const copies = participants
      ? getBinaryNodeChildren(participants, 'to').map(to => [to.attrs.jid, getBinaryNodeChild(to, 'enc')])
      : [[node.attrs.to, getBinaryNodeChild(node, 'enc')]]
    for (const [jid, { attrs, content }] of copies) {
      const data = await people
        .get(jidDecode(jid).user)
        .signal.decryptMessage({ jid: `${ME}:${DEVICE}@${SERVER}`, type: attrs.type, ciphertext: content })
      const message = proto.Message.decode(unpadRandomMax16(data))
      if (node.attrs.to === HALL) await this.takeFromGroup(node, people.get(jidDecode(jid).user), message)
      else if (!message.deviceSentMessage || jidDecode(node.attrs.to).user === ME)
        this.show(node, message.deviceSentMessage?.message ?? message)
    }
    const error = refusals.shift()
    this.send({
      tag: 'ack',
      attrs: { id: node.attrs.id, class: 'message', from: node.attrs.to, t: now(), ...(error && { error }) },
    })
  }

  /** A message in the group: each phone gets the sender's key first. */
  async takeFromGroup(node, { number, signal }, { senderKeyDistributionMessage: item }) {
    const authorJid = `${ME}:${DEVICE}@${SERVER}`
    await signal.processSenderKeyDistributionMessage({ item, authorJid })
    if (number === ME) return
    const msg = getBinaryNodeChild(node, 'enc').content
    const data = await signal.decryptGroupMessage({ group: HALL, authorJid, msg })
    this.show(node, proto.Message.decode(unpadRandomMax16(data)))
  }

  show(node, message) {
    emit({ event: 'message', id: node.attrs.id, to: node.attrs.to, message: message.toJSON() })
  }

  /** Encrypt a message for the linked device. Messages wait where it is not connected. */
  async deliver({ from, message, attrs, node }) {
    if (node) return this.send(node)
    const one = people.get(from)
    const jid = `${ME}:${DEVICE}@${SERVER}`
    if (!one.knows) {
      const key = child =>
        child && {
          keyId: getBinaryNodeChildUInt(child, 'id', 3),
          publicKey: generateSignalPubKey(getBinaryNodeChildBuffer(child, 'value')),
          signature: getBinaryNodeChildBuffer(child, 'signature'),
        }
      const keys = uploaded
      await one.signal.injectE2ESession({
        jid,
        session: {
          registrationId: getBinaryNodeChildUInt(keys, 'registration', 4),
          identityKey: generateSignalPubKey(getBinaryNodeChildBuffer(keys, 'identity')),
          signedPreKey: key(getBinaryNodeChild(keys, 'skey')),
          preKey: key(getBinaryNodeChildren(getBinaryNodeChild(keys, 'list'), 'key')[ids++]),
        },
      })
      one.knows = true
    }
    const enc = (type, content) => ({ tag: 'enc', attrs: { v: '2', type }, content })
    const content = []
    if (attrs.from === HALL) {
      const sealed = await one.signal.encryptGroupMessage({
        group: HALL,
        meId: attrs.participant,
        data: encodeWAMessage(message),
      })
      content.push(enc('skmsg', sealed.ciphertext))
      const key = { groupId: HALL, axolotlSenderKeyDistributionMessage: sealed.senderKeyDistributionMessage }
      message = { senderKeyDistributionMessage: key }
    }
    const { type, ciphertext } = await one.signal.encryptMessage({ jid, data: encodeWAMessage(message) })
    content.unshift(enc(type, ciphertext))
    this.send({ tag: 'message', attrs: { t: now(), type: 'text', ...attrs }, content })
  }

  end(code) {
    this.send({ tag: 'stream:error', attrs: { code } })
    this.socket.close()
  }
}

const now = () => String(Math.floor(Date.now() / 1000))
const offlineEnd = () => ({
  node: { tag: 'ib', attrs: { from: SERVER }, content: [{ tag: 'offline', attrs: { count: '0' } }] },
})
const waiting = [],
  refusals = [],
  lines = new Set()
let linked = null
let uploaded = fs.existsSync(KEYS_FILE) ? await decodeBinaryNode(fs.readFileSync(KEYS_FILE)) : null

/** Scan a QR code with the phone. */
function scan(qr) {
  const [, , identity, secret] = qr.split('#').pop().split(',')
  const account = Curve.generateKeyPair()
  const details = proto.ADVDeviceIdentity.encode({ rawId: 1, timestamp: 1, keyIndex: 1 }).finish()
  const signed = proto.ADVSignedDeviceIdentity.encode({
    details,
    accountSignatureKey: account.public,
    accountSignature: Curve.sign(
      account.private,
      Buffer.concat([Buffer.from([6, 0]), details, Buffer.from(identity, 'base64')]),
    ),
  }).finish()
  const identityNode = proto.ADVSignedDeviceIdentityHMAC.encode({
    details: signed,
    hmac: hmacSign(signed, Buffer.from(secret, 'base64')),
  }).finish()
  const [line] = [...lines].reverse()
  line.send({
    tag: 'iq',
    attrs: { id: `scan-${++ids}`, type: 'set', from: SERVER, t: now() },
    content: [
      {
        tag: 'pair-success',
        attrs: {},
        content: [
          { tag: 'device-identity', attrs: {}, content: Buffer.from(identityNode) },
          { tag: 'device', attrs: { jid: `${ME}:${DEVICE}@${SERVER}`, lid: `${ME_LID}:${DEVICE}@lid` } },
          { tag: 'platform', attrs: { name: 'android' } },
        ],
      },
    ],
  })
}

const commands = {
  scan: ({ qr }) => scan(qr),
  say: ({ from, text, id }) =>
    post({
      from,
      message: { conversation: text },
      attrs: { id, from: `${from}@${SERVER}`, sender_lid: `${people.get(from).lid}@lid`, notify: 'Anna' },
    }),
  lid: ({ from, text, id }) =>
    post({
      from,
      message: { conversation: text },
      attrs: {
        id,
        from: `${people.get(from).lid}@lid`,
        addressing_mode: 'lid',
        sender_pn: `${from}@${SERVER}`,
        notify: 'Anna',
      },
    }),
  group: ({ from, text, id, mentions = [] }) =>
    post({
      from,
      message: { extendedTextMessage: { text, contextInfo: { mentionedJid: mentions } } },
      attrs: { id, from: HALL, participant: `${from}@${SERVER}`, addressing_mode: 'pn', notify: 'Anna' },
    }),
  note: ({ text, id }) =>
    post({
      from: ME,
      message: { deviceSentMessage: { destinationJid: `${ME}@${SERVER}`, message: { conversation: text } } },
      attrs: { id, from: `${ME}@${SERVER}`, recipient: `${ME}@${SERVER}` },
    }),
  refuse: ({ code }) => refusals.push(String(code)),
  end: ({ code }) => linked.end(String(code)),
  drop: () => lines.forEach(line => line.socket.terminate()),
}

/** Deliver a message, or keep it until the device is back. */
async function post(stanza) {
  if (linked && lines.has(linked)) await linked.deliver(stanza)
  else waiting.push({ ...stanza, attrs: { ...stanza.attrs, offline: '1', t: now() } })
}

const server = new WebSocketServer({ host: '127.0.0.1', port: 0 })
server.on('listening', () => emit({ event: 'listening', port: server.address().port }))
server.on('connection', socket => {
  const line = new Line(socket)
  lines.add(line)
  socket.on('message', data => line.receive(data))
  socket.on('close', () => lines.delete(line) && emit({ event: 'gone' }))
})
readline
  .createInterface({ input: process.stdin })
  .on('line', async line => {
    const command = JSON.parse(line)
    try {
      await commands[command.do](command)
    } catch (error) {
      emit({ error: error.stack })
    }
  })
  .on('close', () => process.exit(0))
