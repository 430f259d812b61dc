// The key that signs the certificates of the WhatsApp of the tests. A bridge with `node --import` of this file, and
// TEST_BRIDGE set to its folder, trusts it instead of WhatsApp's.

import path from 'node:path'
import { pathToFileURL } from 'node:url'

export const ROOT = {
  private: Buffer.from('f8a265edf1774f4a5b481d0f7778f6864108b8a1713e9dbdfdac403a05704761', 'hex'),
  public: Buffer.from('2a0a5a8a19053a6905ac78967e425fc0e462c82bc4af265068f8801ad8261f58', 'hex'),
}

if (process.env.TEST_BRIDGE) {
  const file = path.join(process.env.TEST_BRIDGE, 'node_modules/baileys/lib/Defaults/index.js')
  const { WA_CERT_DETAILS } = await import(pathToFileURL(file))
  WA_CERT_DETAILS.PUBLIC_KEY = ROOT.public
}
