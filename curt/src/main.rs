//! Curt: NFS that says less. One file per subcommand.

fn main() {
    println!("curt");
}
