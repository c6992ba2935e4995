package search

import "strings"

// meant is the weight of a word that a question has another word for.
const meant = 0.5

// groups are words that people and authors of tools use for the same, one group a line. A
// word may stand in several. They are of everyday use and of software in general: no name of
// a product stands here. What people write in two words stands here in one.
const groups = `
create make add new insert
setup create configure
start run trigger launch execute
stop end halt shutdown terminate cancel kill
delete remove erase drop destroy clear clean discard
list show get all every retrieve see view display
search find lookup query look
fetch get read download
read open view see content text say
update change edit modify set alter adjust
rename update name
move update transfer
send post write deliver publish
upload attach attachment put
download save export
copy duplicate clone
comment note remark reply answer message feedback
label tag category
folder directory
file document
picture image photo screenshot icon
favicon icon logo
mail email message inbox
chat message room channel
bug issue ticket problem defect
pr pull
mr merge
repo repository
person people user member employee prospect contact
company business organization
team group
server machine host computer instance vm virtual
machine computer system local desktop
database db source
column field property
row record entry item
document record
structure schema
schema type
link url address
website site web page domain
discount coupon
bill invoice
position item line
plan subscription
pay payment charge
customer client
error failure crash exception
failed fail broken break crash
log output console trace
slow performance speed insight
drive direction route travel
place location local
coordinate latitude longitude geocode
weather forecast
warning alert
rain precipitation
chart graph plot diagram
draw generate chart diagram
compare diff difference change
program process application app software
terminal shell console
task todo
meeting event calendar appointment
permission access right share
public share link
secret password credential
login signin sign authentication
check validate verify test
restart reboot rerun
scale resize replica
approve accept review
undo revert rollback restore
recent latest newest last history
many count number total
similar semantic vector
lock disable deactivate suspend
enable activate
buy sell order trade
slide presentation deck
spreadsheet sheet
press click key
type fill input enter
tab page window
deploy deployment release
version release revision
dependency library package
vulnerability security hole cve
protect mitigation
watch monitor
notify notification alert
summary summarize overview statistics stats
progress status stats statistics
size space storage
idea suggest suggestion recommend
money cost price billing
remote url
local working
talk current context
`

// meanings are the other words of a word's groups.
var meanings = func() map[string][]weighted {
	all := make(map[string][]weighted)
	for line := range strings.Lines(groups) {
		group := strings.Fields(line)
		for _, one := range group {
			for _, other := range group {
				if stem(one) != stem(other) {
					all[stem(one)] = append(all[stem(one)], weighted{stem(other), meant})
				}
			}
		}
	}
	return all
}()
