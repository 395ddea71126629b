package samekey

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// maxAgentPart bounds each text that ToolCallKey and StepKey are made of. The
// longest ids that harnesses have are workflow ids of up to 1,000 bytes; what is
// longer is a message or a transcript, which does not come back byte by byte.
const maxAgentPart = 1024

// ToolCallKey returns the key value of one tool call of an agent: equal for
// equal arguments, in every process, release and language, and different (but
// for a collision in 122 bits of SHA-256) when any of them differs. callID is
// the id that the harness or the model's API gave to the call; run is the id of the
// run or conversation, without which "call_0" of one run would be "call_0" of every
// other; within names what else the id is unique in, outermost first. Many APIs
// count "call_0", "call_1" again in each answer: then the turn belongs in within.
// Some give one id to two calls of one answer: [ToolCallKeys] tells them apart.
//
// The harness saves callID with the call's arguments before it makes the call,
// and takes both from there when it makes the call again. An id that is made
// anew with each attempt makes each attempt a new operation.
//
// The call's arguments are not part of it. So a harness that repeats a call
// with other arguments gets a conflict (processed.ErrConflict, 422), and a
// second call that has the same arguments and an id of its own is done.
//
// The value is sent in the Idempotency-Key header as it is, and is made a key by
// [NewKey] with a scope that names the tenant or principal and the tool. It is a
// UUID of version 8 and RFC 9562's variant, 36 characters, made in three steps:
//
//  1. Concatenate the 19 ASCII bytes "samekey/toolcall/v1" and then, for callID,
//     run and each of within in the order given, the length in bytes as a 32-bit
//     big-endian integer, followed by the bytes.
//  2. Take the first 16 bytes of the SHA-256 digest of that.
//  3. Byte 6 (counted from 0) = (byte 6 AND 0x0f) OR 0x80: version 8.
//     Byte 8 = (byte 8 AND 0x3f) OR 0x80: variant.
//
// For the call id "call_1" of "run-7" within "turn-2", step 1 is, in
// hexadecimal,
//
//	73616d656b65792f746f6f6c63616c6c2f7631
//	00000006 63616c6c5f31
//	00000005 72756e2d37
//	00000006 7475726e2d32
//
// and the value is 52c53ed2-6dc8-8057-82c3-f253fcf77b0b.
//
// It is no secret, and nobody's data comes out of it; but it is a plain hash:
// who can guess all parts, as with a count of runs, can make the same value and
// see that the guess is right. What keeps one tenant from meeting another's keys
// is the scope.
//
// Each part is 1 to 1,024 bytes of UTF-8 without control characters or spaces
// at the ends. A part that is not is refused with a [*KeyError], never trimmed:
// its Field is "call id", "run" or "within part 2" (the first is 1).
func ToolCallKey(callID, run string, within ...string) (string, error) {
	values, err := ToolCallKeys([]string{callID}, run, within...)
	if err != nil {
		return "", err
	}
	return values[0], nil
}

// ToolCallKeys returns the key values of all tool calls of one answer of a model,
// given their ids in the order in which the answer has them. A call whose id no
// earlier call of the answer has gets the value of [ToolCallKey]. One that repeats
// an id, as some models do when they want the same thing twice, gets a value of its
// own: under one value the second would be taken for a repetition of the first.
//
// A retry numbers them equally as long as it is a retry of the same answer: save
// the whole answer before the first call is made, and give the ids of all its calls
// again, those that are done included. An answer for which the model was asked again
// is another answer, with another turn in within.
//
// The second call with an id, and each later one, is made as in ToolCallKey, with
// "samekey/toolcall-again/v1" (25 bytes) in step 1, and its number among those with
// the id as a last part: "2", "3" and so on, in ASCII. The second "call_1" of
// "run-7" within "turn-2" has the value 9671653b-fbe0-83b1-96cd-9ca6fbe89344.
//
// The rules for the parts are those of ToolCallKey; the Field of an id that is
// refused is "call id" for one call, else "call id 2" (the first is 1).
func ToolCallKeys(callIDs []string, run string, within ...string) ([]string, error) {
	for i, id := range callIDs {
		field := "call id"
		if len(callIDs) > 1 {
			field = fmt.Sprintf("call id %d", i+1)
		}
		if err := checkAgentPart(field, id); err != nil {
			return nil, err
		}
	}
	if err := checkAgentPart("run", run); err != nil {
		return nil, err
	}
	for i, part := range within {
		if err := checkAgentPart(fmt.Sprintf("within part %d", i+1), part); err != nil {
			return nil, err
		}
	}
	values, seen := make([]string, len(callIDs)), map[string]int{}
	for i, id := range callIDs {
		parts := append([]string{id, run}, within...)
		if seen[id]++; seen[id] == 1 {
			values[i] = hashedUUID("samekey/toolcall/v1", parts...).String()
		} else {
			values[i] = hashedUUID("samekey/toolcall-again/v1", append(parts, strconv.Itoa(seen[id]))...).String()
		}
	}
	return values, nil
}

// StepKey returns the key value of one tool call of an agent whose harness
// keeps no ids of calls, but numbers or names its steps: equal when run, step
// and tool are equal and the arguments mean the same, in every process, release
// and language, and different (but for a collision in 122 bits of SHA-256) when
// any of them differs. It never equals one made by [ToolCallKey].
//
// The harness saves run and step before it makes the call, and takes them from
// there when it makes the call again. A step is a place in the run's plan or
// its count of calls made, not a position in the transcript, which compaction
// and branches move. Two equal calls that belong to one step would be one
// operation: give them two steps ("7.1", "7.2").
//
// The arguments are part of it. So a model that is asked again after a crash
// and words its call in another way begins a second operation, where
// [ToolCallKey] reports a conflict: prefer that where calls have ids.
//
// arguments is a JSON document, and what counts is its meaning, as in
// [FingerprintJSON]: white space, the order of members and the spelling of
// strings and numbers do not matter, and numbers are compared exactly. A tool
// without arguments gets {}; empty input is an error.
//
// What it returns, and what a guesser can do, is said at [ToolCallKey]. The
// steps are:
//
//  1. Write the arguments in canonical form: no white space; an object's members
//     in the order of their names' UTF-8 bytes; strings as in RFC 8785, section
//     3.2.2.2 (escaped are the quotation mark, the backslash and the control
//     characters below U+0020, as \b, \t, \n, \f, \r, or else \u00 and two lower
//     case digits); a number as an optional "-", the digits of a whole number
//     without leading or trailing zeros, "e", and an exponent without "+" or
//     leading zeros (10.50 is 105e-1, 1 is 1e0); every zero as 0; true, false
//     and null as they are.
//  2. Concatenate the 15 ASCII bytes "samekey/step/v1" and then, for each of
//     run, step, tool and the canonical arguments in this order, the length in
//     bytes as a 32-bit big-endian integer, followed by the bytes.
//  3. Go on with steps 2 and 3 of [ToolCallKey].
//
// For the run "run-7", the step "3", the tool "add_credit" and the arguments
// {"amount": 10.50, "account": "a-1"} these are, canonically,
// {"account":"a-1","amount":105e-1}, step 2 is, in hexadecimal,
//
//	73616d656b65792f737465702f7631
//	00000005 72756e2d37
//	00000001 33
//	0000000a 6164645f637265646974
//	00000021 7b226163636f756e74223a22612d31222c22616d6f756e74223a313035652d317d
//
// and the value is 6438672e-8e47-8d93-bd93-367e9b16e550.
//
// run, step and tool obey the rules for the parts of [ToolCallKey]: a part that
// does not is refused with a [*KeyError], whose Field is "run", "step" or
// "tool". Arguments without one meaning are refused with a [*FingerprintError].
// Their size is not limited here.
func StepKey(run, step, tool string, arguments []byte) (string, error) {
	for _, part := range [][2]string{{"run", run}, {"step", step}, {"tool", tool}} {
		if err := checkAgentPart(part[0], part[1]); err != nil {
			return "", err
		}
	}
	if len(bytes.TrimSpace(arguments)) == 0 {
		return "", refuse(0, "the arguments are empty", "send {} for a call without arguments")
	}
	canonical, err := canonicalJSON(arguments)
	if err != nil {
		return "", err
	}
	return hashedUUID("samekey/step/v1", run, step, tool, string(canonical)).String(), nil
}

// checkAgentPart holds a part to the rules of a scope's, and to a length.
func checkAgentPart(field, part string) error {
	const advice = "give the id that was saved with the call, in 1 to 1,024 bytes of UTF-8 without control characters or spaces at the ends"
	if len(part) > maxAgentPart {
		return &KeyError{Field: field, Reason: fmt.Sprintf("is %d bytes long, more than %d", len(part), maxAgentPart), Do: advice}
	}
	err := checkPart(0, part)
	if invalid, ok := errors.AsType[*KeyError](err); ok {
		invalid.Field, invalid.Do = field, advice
	}
	return err
}
