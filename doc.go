// Package toolmesh is the vocabulary that every part of the mesh shares: the
// error type, its codes, and this map of the packages.
//
// # The packages
//
// A package imports only from lower floors; internal/archtest holds the table.
//
//	10 cmd/mesh, cmd/mesh-agent, cmd/mesh-router   settings and flags to lifecycles
//	   meshtest, internal/testmesh                 a real mesh inside a test, and its parts
//	9  agent, gateway                              one machine that runs installs; HTTP and MCP
//	   internal/broker, internal/callout           the embedded broker; admission of the keys of sessions
//	   internal/monitor                            health, metrics and demand over HTTP
//	8  router, internal/bridge                     the member that services embed; a program on pipes
//	7  internal/member                             the common part of a router and an agent
//	6  host, internal/task, internal/deploy        makes a process a node; durable tasks; makes installs be served
//	   internal/inventory                          nodes, indexes and sessions, as lists show them
//	5  client, internal/awaiting                   calls, streams, cancels; which calls wait for a node
//	4  registry, internal/connect                  which node serves what; finding a mesh and connecting to it
//	   internal/chunks, internal/payloads          streams stored and replayed; payloads stored, served and fetched
//	3  internal/store                              the mesh's data in JetStream: keys, objects, reads
//	2  executor, internal/index, internal/bus      Python workers; sources and bundles; one NATS connection
//	1  tool, codec, internal/cache, internal/deep  tools; messages; cached results; deep folders and TOML
//	   internal/access, internal/transcript        keys and their rights; conversations on the wire that tests replay
//	0  toolmesh, subjects, python, examples        words, names, the worker's files
//	   internal/fair                              room and work that sessions share
//	   internal/wake                              goroutines that wake each other, and sleep
//	   internal/search                            tools found by words
//
// # The way of a call
//
// A unary call of a Python tool, from [client.Client.Call] to the function and
// back, is one message each way:
//
//	client   encodes the arguments, picks a node it knows or the queue group,
//	         and sends with a reply subject below the process's one inbox
//	host     takes the request off its channel; refuses a reply subject that is
//	         no inbox; reads headers and body (codec); finds the tool; checks
//	         deadline, session and revision; gives it a slot, or joins it to the
//	         same call that runs (host/internal/admit); validates the arguments (tool)
//	agent    hands the arguments to the executor, as the bytes they are
//	executor picks a warm worker of the index and writes one frame to its pipe
//	worker   converts the arguments, runs the function, writes one frame back
//	host     frees the slot, keeps the result for repetitions, and publishes it
//	         to the reply subject
//
// A stream takes the same way in. Each item is stored in MESH_CHUNKS and
// delivered live by the broker's republish; the caller orders the items
// by Mesh-Seq and asks mesh.replay for missing ones.
//
// What may be promised of a call is in [Error]: its code says where to act,
// and Started whether it may be sent again.
package toolmesh
