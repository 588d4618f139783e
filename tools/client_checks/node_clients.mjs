// Drives a running service with the npm clients, unchanged: node node_clients.mjs URL MODEL. Exit 1 if any fails.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

const [url, model] = process.argv.slice(2);
const baseURL = `${url}/v1`;
const messages = [{ role: "user", content: "hi" }];
const openai = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const parameters = { type: "object", properties: { days: { type: "integer", maximum: 9 } }, required: ["days"] };

async function joined(stream, text) {
  let all = "";
  for await (const item of stream) all += text(item) ?? "";
  return all;
}

const checks = {
  async "openai chat"() {
    const whole = await openai.chat.completions.create({ model, messages, max_tokens: 16, seed: 1, temperature: 0 });
    const stream = await openai.chat.completions.create({ model, messages, max_tokens: 16, seed: 1, temperature: 0, stream: true });
    assert.equal(await joined(stream, (chunk) => chunk.choices[0]?.delta?.content), whole.choices[0].message.content);
  },
  async "openai tools"() {
    const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
    const reply = await openai.chat.completions.create({
      model, messages, tools, tool_choice: "required", parallel_tool_calls: false, max_tokens: 200,
    });
    assert.equal(reply.choices[0].message.tool_calls[0].function.name, "get_weather");
  },
  async "openai responses"() {
    const types = [];
    for await (const event of await openai.responses.create({ model, input: "hi", max_output_tokens: 8, stream: true })) {
      types.push(event.type);
    }
    assert.match(types.at(-1), /^response\.(completed|incomplete)$/);
  },
  async "anthropic messages"() {
    const final = await anthropic.messages.stream({ model, max_tokens: 16, messages }).finalMessage();
    assert.equal(final.content[0].type, "text");
  },
  async "anthropic tools"() {
    const tools = [{ name: "get_weather", input_schema: parameters }];
    const choice = { type: "any", disable_parallel_tool_use: true };
    const final = await anthropic.messages.stream({ model, max_tokens: 200, messages, tools, tool_choice: choice }).finalMessage();
    assert.equal(typeof final.content[0].input.days, "number");
  },
  async "ai-sdk compatible"() {
    const provider = createOpenAICompatible({ name: "local", baseURL, apiKey: "none" });
    assert.ok((await generateText({ model: provider(model), prompt: "hi", maxOutputTokens: 16 })).text);
    const streamed = streamText({ model: provider(model), prompt: "hi", maxOutputTokens: 16 });
    assert.ok(await joined(streamed.textStream, (text) => text));
  },
  async "ai-sdk responses"() {
    const provider = createOpenAI({ baseURL, apiKey: "none" });
    assert.ok((await generateText({ model: provider.responses(model), prompt: "hi", maxOutputTokens: 16 })).text);
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok    ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL  ${name}: ${String(error).slice(0, 500)}`);
  }
}
process.exit(failed ? 1 : 0);
