// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "coterie/report/markup.hpp"

namespace coterie::report {
namespace {

constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--page:#f7f7f5;--card:#fff;--ink:#1b1d22;--soft:#5c6370;--line:#e2e3e6;
--grid:#ebecee;--chosen:#1d5fd6;--chosen-soft:#e8f0fd;--baseline:#7d838f;--s1:#c77700;--s2:#7a4fc9;
--s3:#0b8577;--bound:#b03a6a;--good:#147a3d;--bad:#b3261e;--ground:#fafafa;--frame:#3c4250}
@media(prefers-color-scheme:dark){:root{--page:#121418;--card:#1b1e24;--ink:#e9eaed;--soft:#a2a8b4;
--line:#2e323a;--grid:#282c34;--chosen:#6ea5ff;--chosen-soft:#1c2a44;--baseline:#9299a6;--s1:#f0a63c;
--s2:#b394f5;--s3:#3dc4b2;--bound:#ef86ae;--good:#5ecf8a;--bad:#ff8a80;--ground:#14161a;
--frame:#c3c8d2}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);line-height:1.55;
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1060px;margin:0 auto;padding:28px 20px 56px}
header{margin:8px 0 22px}
h1{font-size:1.2rem;margin:0 0 10px;color:var(--soft);font-weight:600}
.lead{font-size:clamp(1.45rem,1rem + 2.2vw,2.25rem);line-height:1.22;font-weight:650;margin:0;
letter-spacing:-.015em;max-width:26em;text-wrap:balance}
h2{font-size:1.22rem;margin:0 0 4px;letter-spacing:-.005em}
section{background:var(--card);border:1px solid var(--line);border-radius:14px;padding:22px 24px;
margin:18px 0}
p{margin:.35em 0 .8em;max-width:68ch}
.soft,figcaption,.tile small,footer{color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:14px;margin:22px 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:14px;padding:16px 18px}
.tile b{display:block;font-size:1.75rem;line-height:1.25;font-weight:680;letter-spacing:-.02em;
font-variant-numeric:tabular-nums}
.tile span{display:block;font-weight:600;margin-bottom:2px}
.tile small{font-size:.86rem;line-height:1.4;display:block}
.good{color:var(--good)}.bad{color:var(--bad)}
.scroll{overflow-x:auto;-webkit-overflow-scrolling:touch}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.94rem}
th,td{padding:8px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left}
thead th{font-weight:600;color:var(--soft);font-size:.84rem;vertical-align:bottom}
thead tr.groups th{border-bottom:0;padding-bottom:0;text-align:left}
.first{border-left:1px solid var(--line)}
tbody tr:last-child td,tbody tr:last-child th{border-bottom:0}
tbody th{font-weight:600}
tr.chosen>*{background:var(--chosen-soft)}
tr.bound>*{color:var(--soft);font-weight:400}
td em{display:block;font-style:normal;color:var(--good);font-size:.8rem;line-height:1.2}
td em.bad{color:var(--bad)}
.chart{display:block;width:100%;min-width:400px;height:auto;overflow:visible}
.chart text{font-size:13.5px;fill:var(--soft)}
.grid{stroke:var(--grid)}
.chart polyline{fill:none;stroke:currentColor;stroke-width:2.4;stroke-linejoin:round}
.chart circle{fill:currentColor;stroke:var(--card);stroke-width:1.6}
.dashed polyline{stroke-dasharray:5 5;stroke-width:1.7}
.s-chosen{color:var(--chosen)}.s-chosen polyline{stroke-width:3}.s-baseline{color:var(--baseline)}
.s-1{color:var(--s1)}.s-2{color:var(--s2)}.s-3{color:var(--s3)}.s-bound{color:var(--bound)}
.s-random{color:var(--baseline)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 20px;padding:0;margin:6px 0 2px;
font-size:.9rem}
.legend li{color:var(--ink);display:flex;align-items:center;gap:8px}
.legend i{width:22px;height:0;border-top:3px solid var(--baseline)}
.legend .s-chosen i{border-color:var(--chosen)}.legend .s-1 i{border-color:var(--s1)}
.legend .s-2 i{border-color:var(--s2)}.legend .s-3 i{border-color:var(--s3)}
.legend .s-bound i{border-color:var(--bound)}
.legend .dashed i{border-top-style:dashed;border-top-width:2px}
.picker{position:absolute;opacity:0;pointer-events:none}
.picks{display:flex;flex-wrap:wrap;gap:6px;margin:8px 0 14px;align-items:center}
.picks label{min-width:38px;text-align:center;padding:5px 10px;border:1px solid var(--line);
border-radius:9px;cursor:pointer;font-variant-numeric:tabular-nums;font-size:.92rem}
.picks label:hover{border-color:var(--chosen)}
.pane{display:none}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(280px,1fr));gap:22px}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:18px}
.two section{margin:0;min-width:0}
figure{margin:0}
figcaption{font-size:.9rem;margin-top:8px}
figcaption b{color:var(--ink)}
.heat{display:block;width:100%;height:auto}
.heat image{image-rendering:crisp-edges;image-rendering:pixelated}
.ground{fill:var(--ground)}
.block{fill:none;stroke:var(--frame);stroke-width:.35;pointer-events:all}
details{margin-top:6px}
summary{cursor:pointer;font-weight:600;padding:4px 0}
dl{display:grid;grid-template-columns:minmax(110px,max-content) 1fr;gap:6px 20px;margin:8px 0 0;
font-size:.94rem}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
.notes li{margin:.2em 0}
footer{font-size:.86rem;margin-top:20px}
@media(max-width:560px){main{padding:16px 12px 40px}section{padding:16px 14px}
dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:8px}th,td{padding:7px 8px}
.tiles{grid-template-columns:1fr 1fr;gap:10px}.tile{padding:12px 13px}.tile b{font-size:1.35rem}}
@media print{section,.tile{break-inside:avoid}.pane{display:block}.picks{display:none}}
)css";

}  // namespace

std::string style_sheet(std::size_t num_layers) {
  std::string style = kStyle;
  for (std::size_t l = 0; l < num_layers; ++l) {
    const std::string n = std::to_string(l);
    style += "#l" + n + ":checked~#p" + n + "{display:block}#l" + n + ":checked~.picks [for=l" + n +
             "]{background:var(--chosen);border-color:var(--chosen);color:var(--card)}#l" + n +
             ":focus-visible~.picks [for=l" + n +
             "]{outline:2px solid var(--chosen);"
             "outline-offset:2px}\n";
  }
  return style;
}

}  // namespace coterie::report
