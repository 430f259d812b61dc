"""Clients that are not among our packages, installed into a folder of the test: langchain, agents, and two for Node."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest

from nanobot.testing import calls
from tests.fakes.tools import command
from tests.support.api_client import api_key, base_url, program, read_events
from tests.support.running_gateway import OpenGateway

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SCRIPT = ("plain", calls(("run", {"target": "ls"}), text="I look."), "streamed")

LANGCHAIN = """
from langchain_openai import ChatOpenAI
for responses in (False, True):
    model = ChatOpenAI(model="nanobot", use_responses_api=responses)
    print(model.invoke("hello").text, "|", "".join(chunk.text for chunk in model.stream("run it")).replace("\\n", ""))
"""
AGENTS = """
import asyncio
from agents import Agent, OpenAIResponsesModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI
set_tracing_disabled(True)
async def main():
    agent = Agent(name="n", model=OpenAIResponsesModel("nanobot", AsyncOpenAI()))
    print((await Runner.run(agent, "hello")).final_output)
    streamed = Runner.run_streamed(agent, "run it")
    async for event in streamed.stream_events():
        pass
    print(streamed.final_output)
asyncio.run(main())
"""
OPENAI_JS = """
import OpenAI from "openai";
const client = new OpenAI();
const messages = [{role: "user", content: "hello"}];
const plain = await client.chat.completions.create({model: "nanobot", messages});
let text = "";
for await (const chunk of await client.chat.completions.create({model: "nanobot", messages, stream: true}))
  text += chunk.choices[0]?.delta?.content ?? "";
const streamed = await client.responses.stream({model: "nanobot", input: "hello"}).finalResponse();
console.log(plain.choices[0].message.content, "|", text.replaceAll("\\n", ""), "|", streamed.output_text);
"""
AI_SDK = """
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";
const provider = createOpenAICompatible({
  name: "nanobot", baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY,
});
const plain = await generateText({ model: provider("nanobot"), prompt: "hello" });
let text = "";
for await (const part of streamText({ model: provider("nanobot"), prompt: "run it" }).textStream) text += part;
console.log(plain.text, "|", text.replaceAll("\\n", ""));
"""


async def output_of(*words: str, cwd: Path, **environ: str) -> str:
    """What a program prints. Raises AssertionError if it fails."""
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=cwd,
        env={**os.environ, **environ},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()[-3000:]
    return out.decode()


async def install(*words: str, cwd: Path) -> None:
    try:
        await output_of(*words, cwd=cwd)
    except AssertionError as error:
        pytest.skip(f"cannot be installed: {error}")


async def python_output(running: OpenGateway, tmp_path: Path, program: str, packages: str, *script: object) -> str:
    """What a Python program with these packages prints, with the gateway as its OpenAI."""
    await output_of(sys.executable, "-m", "venv", "venv", cwd=tmp_path)
    python = str(tmp_path / "venv" / "bin" / "python")
    await install(python, "-m", "pip", "install", "-q", *packages.split(), cwd=tmp_path)
    async with running(*script) as here:
        here.gateway.runtime.tools.register(command())
        environ = {"OPENAI_BASE_URL": base_url(here), "OPENAI_API_KEY": await api_key(here)}
        return await output_of(python, "-c", program, cwd=tmp_path, **environ)


async def node_output(running: OpenGateway, tmp_path: Path, program: str, packages: str, *script: object) -> str:
    """The same for Node."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    await install("npm", "install", "--silent", "--no-fund", "--no-audit", *packages.split(), cwd=tmp_path)
    (tmp_path / "program.mjs").write_text(program, encoding="utf-8")
    async with running(*script) as here:
        here.gateway.runtime.tools.register(command())
        environ = {"OPENAI_BASE_URL": base_url(here), "OPENAI_API_KEY": await api_key(here)}
        return await output_of("node", "program.mjs", cwd=tmp_path, **environ)


async def test_langchain(running: OpenGateway, tmp_path: Path):
    out = await python_output(running, tmp_path, LANGCHAIN, "langchain-openai", *SCRIPT, *SCRIPT)

    assert out.splitlines() == ["plain | I look.streamed"] * 2


async def test_openai_agents(running: OpenGateway, tmp_path: Path):
    out = await python_output(running, tmp_path, AGENTS, "openai-agents", *SCRIPT)

    assert out.splitlines() == ["plain", "streamed"]


async def test_openai_for_node(running: OpenGateway, tmp_path: Path):
    out = await node_output(running, tmp_path, OPENAI_JS, "openai", *SCRIPT, "third")

    assert out.strip() == "plain | I look.streamed | third"


async def test_ai_sdk(running: OpenGateway, tmp_path: Path):
    out = await node_output(running, tmp_path, AI_SDK, "ai @ai-sdk/openai-compatible", *SCRIPT)

    assert out.strip() == "plain | I look.streamed"


async def test_two_hundred_streams_at_once(running: OpenGateway):
    async with running(*["Hello back"] * 200) as here, program(here) as client:
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        answers = await asyncio.gather(*[client.post("/chat/completions", json=body, timeout=300) for _ in range(200)])

    assert {read_events(answer.text)[-1]["data"] for answer in answers} == {"[DONE]"}
