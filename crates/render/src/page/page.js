// Starts the page of a report.

const report = JSON.parse(byId('report').textContent);
showHead(report);
showDetails(report);
const owners = new Owners(report);
setUpScheme();
listenToKeys({ Escape: () => owners.choose(null), '/': () => byId('text').focus(), d: () => byId('scheme').click() });
window.rbloat = { report, owners };
document.documentElement.dataset.drawn = '';
