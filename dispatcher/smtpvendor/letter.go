package smtpvendor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	netmail "net/mail"
	"slices"
	"strings"

	"github.com/wneessen/go-mail"

	"github.com/samekey/samekey/dispatcher"
)

// letter is a mail as each attempt sends it: sender, recipients and bytes.
type letter struct {
	From    string   `json:"from"`
	To      []string `json:"to"` // with copies and blind copies
	message []byte
}

// letterType names the form of a stored letter: a line of JSON, then the mail. Another form gets another name.
const letterType = "smtpvendor/1"

// rendered turns a composed mail into what is stored.
func (c *Client) rendered(call *dispatcher.Call, m *mail.Msg) (dispatcher.Rendered, error) {
	if m == nil {
		return dispatcher.Rendered{}, errors.New("compose returned no mail")
	}
	from, err := m.GetSender(false)
	if err != nil {
		return dispatcher.Rendered{}, errors.New("the mail has no sender")
	}
	to, err := m.GetRecipients()
	if err != nil {
		return dispatcher.Rendered{}, errors.New("the mail has no recipient")
	}
	q := letter{From: bare(from)}
	for _, address := range to {
		q.To = append(q.To, bare(address))
	}
	if err := q.check(); err != nil {
		return dispatcher.Rendered{}, err
	}
	if err := checkParts(m); err != nil {
		return dispatcher.Rendered{}, err
	}
	domain := q.From[strings.LastIndex(q.From, "@")+1:]
	if !isWord(domain) {
		domain = c.server.Hello
	}
	id := call.CarriedKey + "@" + domain
	m.SetMessageIDWithValue(id)
	if len(m.GetGenHeader(mail.HeaderDate)) == 0 {
		m.SetDateWithValue(call.CreatedAt)
	}
	head, err := json.Marshal(q)
	if err != nil {
		return dispatcher.Rendered{}, err
	}
	stored := bytes.NewBuffer(append(head, '\n'))
	if _, err := m.WriteTo(stored); err != nil {
		return dispatcher.Rendered{}, fmt.Errorf("the mail could not be written: %w", err)
	}
	message := stored.Bytes()[len(head)+1:]
	if err := checkHeader(message, "<"+id+">"); err != nil {
		return dispatcher.Rendered{}, err
	}
	if bytes.Count(message, []byte("\r")) != bytes.Count(message, []byte("\r\n")) {
		return dispatcher.Rendered{}, errors.New("the mail has a carriage return without a line feed, which some servers take for the end of the mail: encode the text as quoted-printable")
	}
	return dispatcher.Rendered{Request: stored.Bytes(), Type: letterType, MessageID: "<" + id + ">"}, nil
}

func parseLetter(r *dispatcher.Rendered) (*letter, error) {
	if r == nil {
		return nil, errors.New("no mail is stored: an earlier release may have sent it")
	}
	if r.Type != letterType {
		return nil, fmt.Errorf("the stored mail is a %.40q, but this release sends %q", r.Type, letterType)
	}
	head, message, found := bytes.Cut(r.Request, []byte("\n"))
	q := &letter{message: message}
	if !found || json.Unmarshal(head, q) != nil || q.check() != nil {
		return nil, errors.New("the stored mail cannot be read")
	}
	return q, nil
}

// bare is an address without its angle brackets.
func bare(address string) string {
	return strings.TrimSuffix(strings.TrimPrefix(address, "<"), ">")
}

// maxAddress is RFC 5321's limit: 64 for the local part, 255 for the domain, and the @.
const maxAddress = 320

// check refuses addresses that would end their command or add a parameter to it.
func (q *letter) check() error {
	for i, address := range append([]string{q.From}, q.To...) {
		at := strings.LastIndex(address, "@")
		if at < 1 || len(address) > maxAddress || strings.ContainsFunc(address, isControl) || strings.ContainsAny(address[at:], " <>\"") ||
			!strings.HasPrefix(address, `"`) && strings.ContainsAny(address, " <>") {
			return fmt.Errorf("address %d of the envelope is not a valid address", i)
		}
	}
	if len(q.To) == 0 {
		return errors.New("the mail has no recipient")
	}
	return nil
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// checkParts checks what go-mail writes into the headers of parts without a check.
func checkParts(m *mail.Msg) error {
	var values []string
	for _, part := range m.GetParts() {
		values = append(values, string(part.GetContentType()), string(part.GetCharset()))
	}
	for _, file := range slices.Concat(m.GetAttachments(), m.GetEmbeds()) {
		values = append(values, string(file.ContentType))
		for name, more := range file.Header {
			values = append(append(values, name), more...)
		}
	}
	for _, value := range values {
		if strings.ContainsFunc(value, isControl) {
			return errors.New("a part's or an attachment's type, id or header has a line break or another control character in it")
		}
	}
	return nil
}

// once are the fields that a mail has at most once. An injection would leave a second one.
var once = []string{"From", "Sender", "Reply-To", "To", "Cc", "Message-Id", "Date", "Subject", "Mime-Version", "Content-Type"}

// checkHeader checks the header as a receiver sees it.
func checkHeader(message []byte, id string) error {
	m, err := netmail.ReadMessage(bytes.NewReader(message))
	if err != nil {
		return errors.New("the mail's header is not valid")
	}
	for _, name := range once {
		if len(m.Header[name]) > 1 {
			return fmt.Errorf("the mail's header has more than one %s", name)
		}
	}
	if m.Header.Get("Message-Id") != id || len(m.Header["From"]) == 0 {
		return errors.New("the mail's header has no From, or another Message-ID")
	}
	if len(m.Header["Bcc"]) > 0 {
		return errors.New("the mail's header contains its blind copies")
	}
	words := new(mime.WordDecoder)
	for name, values := range m.Header {
		for _, value := range values {
			plain, err := words.DecodeHeader(value)
			if err != nil {
				plain = value // in an unknown charset
			}
			if strings.ContainsFunc(plain, func(r rune) bool { return isControl(r) && r != '\t' }) {
				return fmt.Errorf("the header field %.60q has a line break or another control character in it", name)
			}
		}
	}
	return nil
}
