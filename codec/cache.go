package codec

// CacheUse says what a node's cache of results had to do with a result.
type CacheUse uint8

// The values of Mesh-Cache on a result.
const (
	// CacheNone: the tool keeps no results, and the header is not there.
	CacheNone CacheUse = iota
	// CacheHit: the result was made for another call.
	CacheHit
	// CacheMiss: the tool ran for this call.
	CacheMiss
	// CacheBypass: the tool ran because the caller asked for that.
	CacheBypass
)

// cacheBypass is the one value of Mesh-Cache on a request.
const cacheBypass = "bypass"

var cacheValues = [...][]string{CacheHit: {"hit"}, CacheMiss: {"miss"}, CacheBypass: {cacheBypass}}

// Put writes the header into that of a reply, where there is something to say and,
// in the plain form, a header to say it in.
func (u CacheUse) Put(h Header) {
	if u != CacheNone && h != nil {
		h[HeaderCache] = cacheValues[u]
	}
}

// CacheUseOf reads what [CacheUse.Put] wrote.
func CacheUseOf(value string) CacheUse {
	for use, v := range cacheValues {
		if len(v) > 0 && v[0] == value {
			return CacheUse(use) //nolint:gosec // one of four
		}
	}
	return CacheNone
}
