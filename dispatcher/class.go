package dispatcher

import "time"

// Class states what may be repeated at a vendor. It decides what happens to an attempt whose outcome is unknown. Every
// action needs one.
type Class int

const (
	classMissing Class = iota

	// Read changes nothing at the vendor. It is repeated freely.
	Read

	// IdempotentWrite is a write that the vendor deduplicates by the delivery key within the policy's KeyWindow. It is
	// repeated with the same key and the same bytes, and never sent if the window could end during the call.
	IdempotentWrite

	// NonIdempotentWrite is a write that the vendor does not deduplicate. It is repeated only if the attempt was
	// provably unsent ([Unsent]) or the vendor reported that it did not act ([Retry]). After any other failure it is
	// unknown: looked up, or parked for a person.
	NonIdempotentWrite

	// IrreversibleWrite is a write that a person must approve before it is sent. An approval is good for one claim. An
	// attempt that was provably unsent waits for another approval. After any other failure it is unknown.
	IrreversibleWrite
)

var classNames = map[Class]string{
	Read: "read", IdempotentWrite: "idempotent_write",
	NonIdempotentWrite: "non_idempotent_write", IrreversibleWrite: "irreversible_write",
}

// String returns the class's name in configuration files and logs, such as "idempotent_write".
func (c Class) String() string {
	if name, ok := classNames[c]; ok {
		return name
	}
	return "no class"
}

// goName returns the name of the class's constant.
func (c Class) goName() string {
	switch c {
	case Read:
		return "Read"
	case IdempotentWrite:
		return "IdempotentWrite"
	case NonIdempotentWrite:
		return "NonIdempotentWrite"
	case IrreversibleWrite:
		return "IrreversibleWrite"
	}
	return "no class"
}

// ParseClass returns the class with this name; ok is false if there is none.
func ParseClass(name string) (c Class, ok bool) {
	for class, have := range classNames {
		if have == name {
			return class, true
		}
	}
	return classMissing, false
}

// repeatable reports whether an attempt with an unknown outcome may be repeated without a lookup.
func (c Class) repeatable() bool { return c == Read || c == IdempotentWrite }

// Forever is a KeyWindow that never ends: the vendor keeps keys permanently. samekey still prunes its own records after
// their retention.
const Forever time.Duration = 1<<63 - 1
