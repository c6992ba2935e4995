package codec

// CacheUse is how a node's cache of results served a call: a value of Mesh-Cache. The zero
// value is that of a tool that keeps no results, without the header.
type CacheUse string

// The values of Mesh-Cache on a result.
const (
	// CacheHit: the result was made for another call.
	CacheHit CacheUse = "hit"
	// CacheMiss: the tool ran for this call.
	CacheMiss CacheUse = "miss"
	// CacheBypass: the tool ran because the caller asked for that, with the same value.
	CacheBypass CacheUse = "bypass"
)

// Put writes the header into that of a reply, which is nil for the envelope form.
func (u CacheUse) Put(h Header) {
	if u != "" && h != nil {
		h.Set(HeaderCache, string(u))
	}
}
