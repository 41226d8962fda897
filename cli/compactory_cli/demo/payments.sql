-- The tables of the demo's payments. A trigger publishes each payment and enqueues its receipt, in the transaction of the INSERT.
CREATE TABLE payments (
    id          int8    GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    terminal_id text    NOT NULL,
    amount      numeric NOT NULL
);
CREATE TABLE receipts (payment_id int8 PRIMARY KEY, attempt int NOT NULL, sent timestamptz NOT NULL DEFAULT now());
CREATE TABLE ledger (payment_id text PRIMARY KEY, terminal_id text NOT NULL, amount numeric NOT NULL);

CREATE FUNCTION announce_payment() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM compactory.publish(
        'payments', jsonb_build_object('terminal_id', NEW.terminal_id, 'amount', NEW.amount), NEW.id::text);
    PERFORM compactory.enqueue('receipt.send', jsonb_build_object('payment', NEW.id));
    RETURN NULL;
END $$;
CREATE TRIGGER announce AFTER INSERT ON payments FOR EACH ROW EXECUTE FUNCTION announce_payment();
