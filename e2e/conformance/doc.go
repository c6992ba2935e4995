// Package conformance holds clients and hosts to one suite of cases.
//
// cases.json has the cases, as data: each is steps that a client takes, and what
// comes of them. They are run by the Go client and by the Python client, plain and
// for coroutines, against the tools of an index, of a Go host and of a Python
// host: the same case, the same outcome. In texts {host} is what the tools' ids begin
// with, {tmp} a folder, {id} a name of the run, and {N} a text of so many bytes; in
// outcomes {0..N} is the list of these numbers. What an expected object does not
// name may be anything.
//
// The numbers of the cases are those of the rows of the project's research
// (DSPex 5-…, rath 7.3-…) and of the protocol's sections. elsewhere.json says of each
// further row why it is no case here, and what shows it.
package conformance
