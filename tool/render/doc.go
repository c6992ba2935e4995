// Package render shows a tool to a model: it turns a [tool.Descriptor] into the function
// declaration of a provider (OpenAI chat and responses, Anthropic, Gemini, MCP), and the model's
// answer back into the tool's arguments.
//
// Each provider takes another subset of JSON Schema and refuses a whole request for one word
// outside it. Words within it stay as the author wrote them; others are rewritten so that they can
// be mapped back, or left out with a text in [Rendered.Notes]. The mesh checks arguments against
// the author's own schema before a call in any case: a rendering may allow more, and never leaves
// out without a note a value that the tool takes.
//
// [Tool] renders for a [Format]; [Arguments] turns a model's answer, an object or JSON in a text,
// into arguments that fit the schema, and lists its changes for people. The registry's verbs render
// and arguments do the same over the wire. Errors are invalid_request for an unknown format, and
// invalid_arguments for arguments that are not a JSON object. Every function may be called
// concurrently.
//
// It must never call a provider, run a tool, or guess which tool a name means:
// package tool has them ([tool.ProviderName]). Read on: docs/tools.md, "Names", and docs/mcp.md.
package render
