package httpvendor

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samekey/samekey/internal/retryafter"
	"github.com/samekey/samekey/internal/wire"
	"github.com/samekey/samekey/internal/wirehttp"
)

// OAuth2 is a client of an OAuth 2.0 server that gets tokens by the client credentials grant (RFC 6749, section 4.4).
// TokenURL, ClientID and ClientSecret are required.
type OAuth2 struct {
	// TokenURL is where tokens are requested: http or https. The rules for the destination's URL apply. The destination's
	// CAFile, Proxy and AllowPrivate are used too.
	TokenURL string

	ClientID, ClientSecret string

	// Scopes and Audience are sent if they are set. Audience is not in the RFC; some servers want it.
	Scopes   []string
	Audience string

	// AuthStyle is how the client authenticates: "basic" with the header Authorization, or "body" with client_id and
	// client_secret in the form. Default: "basic".
	AuthStyle string
}

// check notes mistakes.
func (o OAuth2) check(allowed allowList, m mistakes) {
	if at, err := parseURL(o.TokenURL); err != nil {
		m.add("TokenURL", "%v", err)
	} else if err := allowed.checkURL(at); err != nil {
		m.add("TokenURL", "%v: add its range to %s if it is intended", err, word("AllowPrivate"))
	} else if at.User != nil {
		m.add("TokenURL", "has a user: set %s and %s instead", word("ClientID"), word("ClientSecret"))
	}
	if o.ClientID == "" {
		m.add("ClientID", "missing")
	}
	if o.ClientSecret == "" {
		m.add("ClientSecret", "missing")
	}
	if !slices.Contains([]string{"", "basic", "body"}, o.AuthStyle) {
		m.add("AuthStyle", "%q is not one of basic, body", o.AuthStyle)
	}
	for i, scope := range o.Scopes {
		if scope == "" || strings.ContainsAny(scope, " \t\r\n\"\\") {
			m.at("Scopes", i).add("", "must be one scope without spaces and quotation marks: list each by itself")
		}
	}
}

// basic is the client's basic authentication. RFC 6749, section 2.3.1, has both parts escaped as in a form.
func (o OAuth2) basic() string {
	return base64.StdEncoding.EncodeToString([]byte(url.QueryEscape(o.ClientID) + ":" + url.QueryEscape(o.ClientSecret)))
}

// token is a token of an OAuth 2.0 server.
type token struct {
	of           OAuth2
	text         string
	until, renew time.Time // zero: good until it is denied
}

// token returns a token, the one that is held if it is still good. If there is no new one while the one that is held
// is good, it returns that one, and late says why.
func (k *changing) token(ctx context.Context, of OAuth2, afresh bool) (late, err error) {
	held := k.held
	same := held.text != "" && !afresh && reflect.DeepEqual(held.of, of)
	if same && (held.renew.IsZero() || time.Now().Before(held.renew)) {
		return nil, nil
	}
	if !time.Now().Before(k.wait.until) || !reflect.DeepEqual(k.wait.of, of) {
		next, wait, err := k.of.requestToken(ctx, of)
		if err == nil {
			k.held = next
			return nil, nil
		}
		k.wait = tokenWait{of: of, until: time.Now().Add(min(wait, longestTokenWait)), err: err}
	}
	if same && time.Now().Before(held.until) {
		return k.wait.err, nil
	}
	return nil, k.wait.err
}

// longestTokenWait bounds the Retry-After of a token's server, since nothing may be sent meanwhile.
const longestTokenWait = 5 * time.Minute

// tokenWait is why a server gave no token, and until when it is not asked again with the same client.
type tokenWait struct {
	of    OAuth2
	until time.Time
	err   error
}

// tokenLimit is how much of an answer with a token is read.
const tokenLimit = 64 << 10

// requestToken makes one request for a token. An error contains nothing of the answer but its status, and a code that
// the RFC defines. With an error, wait is what the answer asks for.
func (c *Client) requestToken(ctx context.Context, of OAuth2) (got token, wait time.Duration, err error) {
	at, err := parseURL(of.TokenURL)
	if err != nil {
		return token{}, 0, fmt.Errorf("the token's URL %w", err)
	}
	form := url.Values{"grant_type": {"client_credentials"}}
	if len(of.Scopes) > 0 {
		form.Set("scope", strings.Join(of.Scopes, " "))
	}
	if of.Audience != "" {
		form.Set("audience", of.Audience)
	}
	header := http.Header{"User-Agent": {userAgent}, "Accept": {"application/json"}, "Content-Type": {"application/x-www-form-urlencoded"}}
	if of.AuthStyle == "body" {
		form.Set("client_id", of.ClientID)
		form.Set("client_secret", of.ClientSecret)
	} else {
		header.Set("Authorization", "Basic "+of.basic())
	}
	req := newRequest(http.MethodPost, at, header)
	setBody(req, []byte(form.Encode()))

	began := time.Now()
	w := wire.New(ctx)
	defer w.End()
	resp, err := wirehttp.RoundTrip(w, c.reusing, req.WithContext(ctx))
	if err != nil {
		_, text := describe(err)
		return token{}, 0, fmt.Errorf("no token: %s", text)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, tokenLimit))
	if err != nil {
		_, text := describe(err)
		return token{}, 0, fmt.Errorf("no token: %s", text)
	}
	wait, _ = retryafter.Read(resp.Header, time.Now())
	got, err = of.read(resp.StatusCode, body, began)
	return got, wait, err
}

// tokenErrors are the codes of RFC 6749, section 5.2, and what to do.
var tokenErrors = map[string]string{
	"invalid_client":         "correct the client's id, secret or auth style",
	"invalid_request":        "correct the token's URL, the scopes or the audience",
	"invalid_scope":          "correct the scopes",
	"unauthorized_client":    "allow the client credentials grant for this client",
	"unsupported_grant_type": "the server has no client credentials grant: correct the token's URL",
	"invalid_grant":          "correct the client's id and secret",
}

// read takes the token from an answer.
func (of OAuth2) read(status int, body []byte, began time.Time) (token, error) {
	var answer struct {
		AccessToken string          `json:"access_token"`
		TokenType   string          `json:"token_type"`
		ExpiresIn   json.RawMessage `json:"expires_in"`
		Error       string          `json:"error"`
	}
	err := json.Unmarshal(body, &answer)
	switch next := tokenErrors[answer.Error]; {
	case next != "":
		return token{}, fmt.Errorf("no token: the server answered %d %s: %s", status, answer.Error, next)
	case status != http.StatusOK:
		return token{}, fmt.Errorf("no token: the server answered %d", status)
	case err != nil || answer.AccessToken == "":
		return token{}, errors.New("no token: the server's answer is not JSON with an access_token")
	case answer.TokenType != "" && !strings.EqualFold(answer.TokenType, "bearer"):
		return token{}, errors.New("no token: its type is not Bearer")
	}
	if err := checkHeader("Authorization", "Bearer "+answer.AccessToken); err != nil {
		return token{}, fmt.Errorf("no token: %w", err)
	}
	got := token{of: of, text: answer.AccessToken}
	if seconds, err := strconv.ParseFloat(strings.Trim(string(answer.ExpiresIn), `"`), 64); err == nil && seconds > 0 && seconds < 1e9 {
		got.until = began.Add(time.Duration(seconds * float64(time.Second)))
		got.renew = renewal(began, got.until)
	}
	return got, nil
}
