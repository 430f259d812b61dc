"""URLs that must never connect: this machine and everything near it, in the spellings that got past other walls.

`{port}` is where a server of ours listens on every address of this machine. Names are looked up in `NAMES`.
"""


def spellings(text: str) -> list[str]:
    return text.split()


LOOPBACK = spellings("""
http://127.0.0.1:{port}/ http://127.0.0.1:{port} http://127.0.0.1.:{port}/ http://127.1:{port}/ http://127.0.1:{port}/
http://127.000.000.001:{port}/ http://0127.0.0.1:{port}/ http://0177.0.0.1:{port}/ http://0177.0.0.01:{port}/
http://00000177.0.0.1:{port}/ http://0x7f.0.0.1:{port}/ http://0x7f.0x0.0x0.0x1:{port}/ http://0X7F.0.0.1:{port}/
http://0x7f000001:{port}/ http://0x7F000001:{port}/ http://0x0000007f000001:{port}/ http://2130706433:{port}/
http://017700000001:{port}/ http://0o177.0.0.1:{port}/ http://0x7f.1:{port}/ http://127.0x1:{port}/
http://127.0.0.0x1:{port}/ http://0x7f.0.1:{port}/ http://4294967297:{port}/ http://425.510.425.510:{port}/
http://383.256.256.257:{port}/ http://127.0.0.2:{port}/ http://127.8.8.8:{port}/ http://127.255.255.254:{port}/
http://0.0.0.0:{port}/ http://0:{port}/ http://0.0.0.1:{port}/ http://0x0:{port}/ http://00:{port}/ http://0.0:{port}/
http://0.0.0:{port}/ http://0000.0.0.0:{port}/ http://[::1]:{port}/ http://[::]:{port}/
http://[0:0:0:0:0:0:0:1]:{port}/ http://[0000::0001]:{port}/ http://[::0001]:{port}/ http://[0:0:0:0:0:0:0:0]:{port}/
http://[::ffff:127.0.0.1]:{port}/ http://[::FFFF:127.0.0.1]:{port}/ http://[::ffff:7f00:1]:{port}/
http://[0:0:0:0:0:ffff:7f00:0001]:{port}/ http://[::ffff:0:127.0.0.1]:{port}/ http://[::127.0.0.1]:{port}/
http://[::7f00:1]:{port}/ http://[64:ff9b::127.0.0.1]:{port}/ http://[64:ff9b::7f00:1]:{port}/
http://[64:ff9b:1::7f00:1]:{port}/ http://[2002:7f00:1::]:{port}/ http://[2002:7f00:0001::1]:{port}/
http://[2001:0:4136:e378:8000:63bf:80ff:fffe]:{port}/ http://[::1%25lo]:{port}/ http://[::1%lo]:{port}/
http://[fe80::1%25lo]:{port}/ http://[::1:{port}/ http://::1:{port}/ http://[::1]a:{port}/ http://[127.0.0.1]:{port}/
http://localhost:{port}/ http://LOCALHOST:{port}/ http://LocalHost:{port}/ http://localhost.:{port}/
http://localhost..:{port}/ http://ip6-localhost:{port}/ http://localhost.localdomain:{port}/
http://foo.localhost:{port}/ http://loopback:{port}/ HTTP://127.0.0.1:{port}/ hTTp://localhost:{port}/
http://127.0.0.1:0{port}/ http://localhost:{port}/?a=b#c
""")

ODD = spellings("""
http:127.0.0.1:{port}/ http:/127.0.0.1:{port}/ http:///127.0.0.1:{port}/ http:////127.0.0.1:{port}/
http:\\\\127.0.0.1:{port}\\ http:/\\127.0.0.1:{port}/ http://\\127.0.0.1:{port}/ \\\\127.0.0.1:{port}\\
//127.0.0.1:{port}/ /127.0.0.1 127.0.0.1:{port} localhost:{port}/ https:127.0.0.1:{port}/ ftp://127.0.0.1:{port}/
file:///etc/passwd file://127.0.0.1/etc/passwd gopher://127.0.0.1:{port}/_GET dict://127.0.0.1:{port}/
ws://127.0.0.1:{port}/ unix:///run/x.sock data:text/plain,hello javascript:alert(1) jar:http://127.0.0.1:{port}!/
view-source:http://127.0.0.1:{port}/ url:http://127.0.0.1:{port}/ http://user@127.0.0.1:{port}/
http://user:pass@127.0.0.1:{port}/ http://public.test@127.0.0.1:{port}/ http://@127.0.0.1:{port}/
http://127.0.0.1:{port}@public.test/ http://public.test:80@127.0.0.1:{port}/ http://public.test%40127.0.0.1:{port}/
http://127.0.0.1:{port}#@public.test/ http://127.0.0.1:{port}?@public.test/ http://127.0.0.1:{port}\\@public.test/
http://public.test\\@127.0.0.1:{port}/ http://public.test\\.127.0.0.1:{port}/ http://127.0.0.1%2f:{port}/
http://127.0.0.1%00.public.test:{port}/ http://127%2e0%2e0%2e1:{port}/ http://%31%32%37.0.0.1:{port}/
http://%6cocalhost:{port}/ http://127.0.0.1%20:{port}/ http://127.0.0.1&public.test:{port}/
http://127.0.0.1,public.test:{port}/ http://127.0.0.1;x:{port}/ http://1①②7.0.0.1:{port}/ http://①②⑦.⓪.⓪.①:{port}/
http://１２７.０.０.１:{port}/ http://127。0。0。1:{port}/ http://127．0．0．1:{port}/ http://127｡0｡0｡1:{port}/
http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ:{port}/ http://ｌｏｃａｌｈｏｓｔ:{port}/ http://locaｌhost:{port}/ http://loc\u00adalhost:{port}/
http://local\u200bhost:{port}/ http://ʟᴏᴄᴀʟʜᴏꜱᴛ:{port}/ http://𝟏𝟐𝟕.𝟎.𝟎.𝟏:{port}/ http://0ₓ7f.0.0.1:{port}/
http://127.0.0.1\u2044:{port}/ http://127.0.0.1\uff0f:{port}/ http://١٢٧.٠.٠.١:{port}/ http://१२७.०.०.१:{port}/
http://xn--localhost-:{port}/ http://-127.0.0.1:{port}/ http://127.0.0.1-:{port}/ http://*.public.test:{port}/
http://public..test:{port}/ http://.public.test:{port}/ http://:{port}/ http://?x http://#x http://public.test:99999/
http://public.test:-1/ http://public.test:0/ http://public.test:80x/ http://public.test:８０/
http://public.test:{port}:{port}/ http://[::1]:{port}:80/ http://[]:{port}/ http://[v1.x]:{port}/
http://[::1]]:{port}/
""")

WITH_CONTROLS = [
    "http://127.0.0.1\t:{port}/",
    "http://127.0.0.1\n:{port}/",
    "http://127.0\r\n.0.1:{port}/",
    "http://public.test:{port}/\r\nHost: 127.0.0.1",
    "ht\ntp://127.0.0.1:{port}/",
    "http://127.0.0.1\x00.public.test:{port}/",
    "http://public.test\x1f:{port}/",
    "http://public.test \x7f:{port}/",
    "http://127.0.0.1 :{port}/",
    "http:// 127.0.0.1:{port}/",
    "http://public.test\u2028:{port}/",
]

NEAR = spellings("""
http://10.0.0.1/ http://10.255.255.255:8080/ http://172.16.0.1/ http://172.31.255.254/ http://192.168.0.1/
http://192.168.1.1/admin http://100.64.0.1/ http://100.100.100.200/latest/meta-data/ http://100.127.255.254/
http://169.254.169.254/latest/meta-data/ http://169.254.170.2/v2/credentials http://169.254.0.1/
http://168.63.129.16/machine http://192.0.0.192/opc/v2/instance/ http://192.0.0.8/ http://192.0.2.1/
http://198.51.100.7/ http://203.0.113.9/ http://198.18.0.1/ http://198.19.255.255/ http://192.88.99.1/
http://224.0.0.1/ http://239.255.255.250:1900/ http://240.0.0.1/ http://255.255.255.255/ http://0xa9fea9fe/
http://2852039166/ http://0251.0376.0251.0376/ http://169.254.43518/ http://0xA9.0xFE.0xA9.0xFE/
http://[::ffff:169.254.169.254]/ http://[::ffff:a9fe:a9fe]/ http://[64:ff9b::a9fe:a9fe]/ http://[2002:a9fe:a9fe::]/
http://[fd00:ec2::254]/latest/meta-data/ http://[fd20:ce::254]/ http://[fc00::1]/ http://[fdff::1]/ http://[fe80::1]/
http://[febf::1]/ http://[fec0::1]/ http://[ff02::1]/ http://[ff0e::1]/ http://[100::1]/ http://[2001:db8::1]/
http://[2001:2::1]/ http://[2001:10::1]/ http://[2001:20::1]/ http://[2001::1]/ http://[3fff::1]/ http://[3ffe::1]/
http://[5f00::1]/ http://[4000::1]/ http://[::ffff:10.0.0.1]/ http://[::10.0.0.1]/ http://[64:ff9b::10.0.0.1]/
http://[64:ff9b:1::a00:1]/ http://[::ffff:8.8.8.8]/
""")

NAMES = {
    "localhost": ["127.0.0.1", "::1"],
    "foo.localhost": ["127.0.0.1"],
    "ip6-localhost": ["::1"],
    "localhost.localdomain": ["127.0.0.1"],
    "loopback": ["127.0.0.1"],
    "home.test": ["127.0.0.1"],
    "home6.test": ["::1"],
    "mapped.test": ["::ffff:127.0.0.1"],
    "nat64.test": ["64:ff9b::7f00:1"],
    "tunnel.test": ["2002:7f00:1::"],
    "both.test": ["93.184.216.34", "127.0.0.1"],
    "both6.test": ["2606:2800:220:1:248:1893:25c8:1946", "::1"],
    "zone.test": ["fe80::1%lo"],
    "router.test": ["192.168.1.1"],
    "zero.test": ["0.0.0.0"],
    "metadata.google.internal": ["169.254.169.254"],
    "public.test": ["93.184.216.34"],
    "127.0.0.1.nip.test": ["127.0.0.1"],
    "xn--bcher-kva.test": ["127.0.0.1"],
}
BY_NAME = [f"http://{name}:{{port}}/" for name in NAMES if name != "public.test"] + [
    "http://HOME.TEST:{port}/",
    "http://home.test.:{port}/",
    "http://ＨＯＭＥ.test:{port}/",
    "http://home。test:{port}/",
    "http://bücher.test:{port}/",
    "http://BÜCHER.test:{port}/",
    "https://home.test:{port}/",
]

CLOSED_URLS = [*LOOPBACK, *ODD, *WITH_CONTROLS, *NEAR, *BY_NAME]
