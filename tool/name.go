package tool

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/toolmesh/toolmesh/subjects"
)

// maxProviderName is the shortest limit that a provider sets for a tool's name.
const maxProviderName = 64

// hashMark precedes the hash of a name that cannot be decoded. No other name
// has three dashes in a row.
const hashMark = "---"

var (
	// everyProvider is a name that every provider takes.
	everyProvider = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,63}$`)
	foreign       = regexp.MustCompile(`[^A-Za-z0-9_-]`)
	toProvider    = strings.NewReplacer(".", "-", "-", "--")
	fromProvider  = strings.NewReplacer("--", "-", "-", ".")
)

// ProviderName returns the name of a tool as model providers take it, by its full id
// alone: "weather.forecast.today" is "weather-forecast-today", and "my-tools.add" is
// "my--tools-add". It always matches ^[A-Za-z_][A-Za-z0-9_-]{0,63}$. An id that has
// other characters, is too long or cannot be read back from that ends in --- and a
// hash of it. So the same id has the same name everywhere and for ever, and two ids
// share one only if 64 bits of SHA-256 collide.
func ProviderName(id subjects.ToolID) string {
	name := toProvider.Replace(string(id))
	if readable := fromProvider.Replace(name) == string(id) && !strings.Contains(name, hashMark); readable && everyProvider.MatchString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(id))
	suffix := hashMark + hex.EncodeToString(sum[:8])
	if name = foreign.ReplaceAllString(name, "_"); !everyProvider.MatchString(name[:min(len(name), 1)]) {
		name = "_" + name
	}
	return name[:min(len(name), maxProviderName-len(suffix))] + suffix
}

// FromProviderName returns the id of a [ProviderName]. hashed tells that the name ends in a
// hash: then the id is the one of the known ids that has this name. ok is false for any
// other text.
func FromProviderName(name string) (id subjects.ToolID, hashed, ok bool) {
	id = subjects.ToolID(fromProvider.Replace(name))
	hashed = strings.Contains(name, hashMark)
	return id, hashed, everyProvider.MatchString(name) && (hashed || ProviderName(id) == name)
}
